"""Table G-5: throughput of the 24 runs of Q9, by seed and arm."""

from collections.abc import Mapping

import pandas as pd

from analysis.ledgers import missing_cells
from analysis.runs import Runs
from analysis.tables import q9
from analysis.tables.beside import PAPER, Number, Quantity, columns, compare
from analysis.tables.registry import derived, table
from analysis.tables.table import Column, Table

_QUANTITIES = tuple(
    Quantity(name=f"{mode.lower()}_{policy}_tok_per_s", heading=f"{mode} {label}", spec=".3f")
    for mode in q9.MODES
    for policy, label in q9.POLICIES.items()
)
_KEY = Column(heading="seed", templates=("{seed}",))


@table("G-5", block=("q9", "confirmation"))
def from_runs(runs: Runs) -> Table:
    """Every run by itself; on the ledger timebase if the runs have one."""
    timebase = "ledger" if q9.has(q9.throughputs(runs, "ledger")) else "span"
    here = q9.throughputs(runs, timebase)
    rows = [
        {"seed": seed, "timebase": timebase, **compare(_QUANTITIES, _named(row), _paper(seed))}
        for seed, row in q9.by_seed(here).items()
    ]
    return Table(
        name="G-5",
        title=f"Throughput by seed and arm, seeds {runs.seeds_text}, beside the published ledger "
        "throughput",
        rows=pd.DataFrame(rows),
        views=((_KEY, *columns(_QUANTITIES[:2])), (_KEY, *columns(_QUANTITIES[2:]))),
        origin=runs.origin,
        notes=(*q9.timebase_notes(runs, timebase), *runs.notes),
        missing=missing_cells([(runs, q9.ARMS.values(), [q9.TIMEBASES[timebase]])]),
    )


@derived("G-5")
def from_paper() -> Table:
    """The whole tokens and seconds behind the printed values."""
    exact = q9.by_seed(q9.exact_throughputs())
    rows = []
    for seed, episode in q9.reconstructed().items():
        seconds = {f"{name}_s": count for name, count in episode.seconds.items()}
        rows.append(
            {
                "seed": seed,
                "output_tokens": episode.tokens,
                **seconds,
                **compare(_QUANTITIES, _named(exact[seed]), _paper(seed)),
            }
        )
    durations = tuple(
        Column(
            group=f"{mode}, s",
            heading=label,
            templates=(f"{{{mode.lower()}_{policy}_s:d}}",),
        )
        for mode in q9.MODES
        for policy, label in q9.POLICIES.items()
    )
    tokens = Column(heading="output tokens", templates=("{output_tokens:,d}",))
    return Table(
        name="G-5",
        title="Ledger throughput by seed and arm: whole tokens over whole seconds",
        rows=pd.DataFrame(rows),
        views=(
            (_KEY, tokens, *durations),
            (_KEY, *columns(_QUANTITIES[:2], here="tokens/s")),
            (_KEY, *columns(_QUANTITIES[2:], here="tokens/s")),
        ),
        origin=PAPER,
        notes=(
            "Reconstructed: the smallest whole numbers that print alike (Appendix G.3 says that "
            "completed tokens of a seed coincide and that ledger durations are whole seconds) and "
            f"last the {q9.arrivals_s():.1f} s in which the requests arrive. A row is known up to "
            "a common factor.",
        ),
    )


def _named(row: Mapping[str, float]) -> dict[str, Number]:
    return {
        f"{name}_tok_per_s": None if pd.isna(value) else float(value) for name, value in row.items()
    }


def _paper(seed: int) -> dict[str, Number]:
    return _named(q9.printed_throughputs().get(seed, {}))
