"""`python -m analysis compare=paper`: reads the ledgers of all campaigns and compares them."""

from collections.abc import Sequence
from pathlib import Path

from analysis.command import FRESH, LEDGERS, parse_pairs, parse_seeds
from analysis.compare.page import page
from analysis.compare.sources import Seeds, Sources
from analysis.compare.targets import load_targets
from analysis.errors import AnalysisError
from analysis.tables.table import Table
from hsexp.config.catalog import options


def compare(arguments: Sequence[str]) -> tuple[list[Table], Path]:
    """The tables of the page, and their output folder.

    Raises:
        AnalysisError: an argument is refused, or the ledgers do not allow the comparison.
    """
    given = parse_pairs(arguments, keys=("compare", "ledgers", "fresh", "engine", "seeds", "out"))
    targets = load_targets(given["compare"])
    engine = given.get("engine", "sim")
    engines = [name for name in options("engine") if name != "auto"]
    if engine not in engines:
        raise AnalysisError(f"engine must be {' or '.join(engines)}, got {engine}")
    root = Path(given.get("ledgers", LEDGERS))
    fresh = Path(given.get("fresh", root / FRESH))
    out = Path(given.get("out", root / "analysis" / "compare"))
    if "seeds" in given or not any(fresh.glob(f"*/{engine}/journal.jsonl")):
        if "fresh" in given:
            why = "with seeds=" if "seeds" in given else f"because {fresh} has no {engine} ledger"
            raise AnalysisError(f"fresh={given['fresh']} has no use {why}")
        seeds = _seeds(given.get("seeds", "published"))
        return page(targets, Sources(root, engine=engine, seeds=seeds)), out
    return (
        page(
            targets,
            Sources(fresh, engine=engine, seeds="all"),
            like_paper=Sources(fresh, engine=engine, seeds="all", as_many_as_published=True),
            beneath=Sources(root, engine=engine, seeds="published"),
        ),
        out,
    )


def _seeds(text: str) -> Seeds:
    match text:
        case "published" | "all":
            return text
        case _:
            return parse_seeds(text)
