"""The runs that a comparison draws on: all campaigns of one engine below one root folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from analysis.command import FRESH
from analysis.compare.from_tables import with_metrics
from analysis.config import block_design
from analysis.errors import NoRunsError
from analysis.families import Contrast
from analysis.ledgers import Ledgers
from analysis.runs import Runs
from hsexp.plan.cells import format_seeds

Seeds = tuple[int, ...] | Literal["published", "all"]
"""Given seeds for every cell; or the published seeds of its block that the ledger has; or all seeds
of the ledger. A ledger without any published seed uses all that it has."""


class Sources:
    """Runs by campaign and block; absent runs have a reason."""

    def __init__(
        self,
        root: Path,
        *,
        engine: str,
        seeds: Seeds = "published",
        as_many_as_published: bool = False,
    ) -> None:
        """
        Args:
            root: <root>/<campaign>/<engine> holds each campaign's ledger.
            as_many_as_published: uses no more seeds than the paper has, the first ones, so that
                tests have its power.
        """
        self._root = root
        self._engine = engine
        self._seeds = seeds
        self._as_many = as_many_as_published
        self._ledgers: dict[str, Ledgers] = {}
        self._runs: dict[tuple[str, str], Runs] = {}
        self.narrowed: list[str] = []
        """Descriptions of blocks that have only some of their published seeds."""

    def runs(self, campaign: str, block: str) -> Runs:
        """The runs of a block.

        Raises:
            AnalysisError: the ledger is damaged, mixes origins, or the block does not exist.
        """
        key = (campaign, block)
        if key not in self._runs:
            self._runs[key] = self._find(campaign, block)
        return self._runs[key]

    def with_metrics(self, campaign: str, block: str, metrics: list[str]) -> Runs:
        """The runs of a block, with metrics that only tables of steps or requests give."""
        runs = self.runs(campaign, block)
        if runs.why_absent is None:
            runs = with_metrics(runs, self._ledgers[campaign], metrics)
            self._runs[campaign, block] = runs
        return runs

    def of(self, contrast: Contrast) -> Runs:
        """The runs of a contrast that names its campaign and block."""
        assert contrast.campaign is not None and contrast.block is not None
        return self.runs(contrast.campaign, contrast.block)

    @property
    def every(self) -> Sequence[Runs]:
        """All runs requested so far."""
        return tuple(self._runs.values())

    def _command(self, campaign: str) -> str:
        """The command that fills a campaign's ledger; one of the paper's fills those of fresh
        seeds."""
        name = "paper" if self._root.name == FRESH else campaign
        return f"python -m hsexp campaign={name}"

    def _find(self, campaign: str, block: str) -> Runs:
        design = block_design(campaign, block)
        path = self._root / campaign / self._engine
        if not (path / "journal.jsonl").is_file():
            return Runs.absent(
                campaign=campaign,
                design=design,
                seeds=design.seeds,
                why=f"there is no ledger {path}; run `{self._command(campaign)}`",
            )
        if campaign not in self._ledgers:
            self._ledgers[campaign] = Ledgers(self._root, paths={campaign: path})
        ledgers = self._ledgers[campaign]
        most = len(design.seeds) if self._as_many else None
        if isinstance(self._seeds, tuple):
            return ledgers.runs(campaign, block, seeds=self._seeds[:most])
        try:
            present = set(ledgers.open_runs(campaign, design).adopted["seed"])
        except NoRunsError as missing:
            return Runs.absent(
                campaign=campaign, design=design, seeds=design.seeds, why=str(missing)
            )
        published = [seed for seed in design.seeds if seed in present]
        absent = sorted(set(design.seeds) - present)
        if published and self._seeds == "published":
            if absent:
                self.narrowed.append(
                    f"campaign {campaign}, {block}: no seed {format_seeds(absent)}"
                )
            return ledgers.runs(campaign, block, seeds=published)
        return ledgers.runs(campaign, block, seeds=sorted(present)[:most])
