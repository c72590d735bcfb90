"""The ledgers that tables draw from: one per campaign, below one root folder, each read once.

A campaign without a ledger, or a block without a run, is not an error here: its runs are absent,
with a reason, so that a table over several campaigns names what it lacks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.config import block_design
from analysis.errors import AnalysisError, NoLedgerError, NoRunsError
from analysis.families import Adoption, Contrast, Design
from analysis.gaps import describe
from analysis.histories import Histories
from analysis.runs import Origin, Runs
from hsexp.config.arm import Arm
from hsexp.ledger import Ledger, LedgerError, NoTableError
from hsexp.plan.cells import format_seeds
from hsexp.plan.resolve import Resolved, standing
from hsexp.runs import engines_below


class Ledgers:
    """Runs of any campaign by block. Reads only."""

    def __init__(
        self,
        root: Path,
        *,
        paths: Mapping[str, Path] | None = None,
        seeds: Sequence[int] | None = None,
        adoption: Adoption = "current",
        launch: Resolved | None = None,
        asked: str | None = None,
        metric: str | None = None,
    ) -> None:
        """
        Args:
            root: <root>/<campaign>/<engine> holds each campaign's ledger.
            paths: ledgers outside the root, by campaign.
            seeds: replace the seeds of every block.
            adoption: how families of tests treat runs in doubt.
            launch: a counted campaign with its overrides; others are read from `conf/`.
            asked: the campaign that a command names; tables of any campaign are about this one.
            metric: what such a table ranks by; None uses throughput.
        """
        self.root = root
        self.adoption = adoption
        self.seeds = tuple(seeds) if seeds is not None else None
        self.asked = asked
        self.metric = metric
        self._launch = launch
        self._paths = dict(paths or {})
        self._campaigns: dict[str, _Campaign] = {}
        self._runs: dict[tuple[str, str, tuple[int, ...]], Runs] = {}
        self._used: list[Runs] = []

    def runs(self, campaign: str, block: str, *, seeds: Sequence[int] | None = None) -> Runs:
        """The runs of one block on its own seeds, or on the given ones.

        Raises:
            AnalysisError: the ledger is damaged, mixes origins, or the block does not exist.
        """
        design = block_design(campaign, block)
        wanted = self.seeds or tuple(seeds or design.seeds)
        key = (campaign, block, wanted)
        if key not in self._runs:
            self._runs[key] = self._select(campaign, block, design, wanted)
        self._used.append(self._runs[key])
        return self._runs[key]

    @contextmanager
    def repeats(self) -> Iterator[list[str]]:
        """Collects the notes on seeds that count once, of the runs used inside the `with`. The
        list is filled at its end."""
        notes: list[str] = []
        self._used = []
        yield notes
        notes += dict.fromkeys(note for runs in self._used for note in runs.repeats)

    def resolved(self, campaign: str) -> Resolved:
        """A counted campaign (one that needs no run), resolved.

        Raises:
            ConfigError: a value of `conf/` is refused.
        """
        if self._launch is not None and self._launch.campaign.kind == campaign:
            return self._launch
        return standing(campaign)

    def of(self, contrast: Contrast) -> Runs:
        """The runs of a contrast that names its campaign and block."""
        assert contrast.campaign is not None and contrast.block is not None
        return self.runs(contrast.campaign, contrast.block)

    def open_runs(self, campaign: str, design: Design) -> Runs:
        """The runs of a design on its seeds and on any other that the ledger has for it.

        Raises:
            AnalysisError: there is none; the ledger is damaged or mixes origins.
        """
        runs = Runs.select(
            self._campaign(campaign).attempts, campaign=campaign, design=design, seeds=self.seeds
        )
        self._used.append(runs)
        return runs

    def path(self, campaign: str) -> Path:
        """Folder of the campaign's ledger.

        Raises:
            NoLedgerError: there is none.
            AnalysisError: there are ledgers of several engines.
        """
        return self._campaign(campaign).path

    def ledger(self, campaign: str) -> Ledger:
        """The campaign's ledger.

        Raises:
            NoLedgerError: there is none.
            AnalysisError: there are ledgers of several engines, or it is damaged.
        """
        return self._campaign(campaign).ledger

    def frame(self, campaign: str) -> pd.DataFrame:
        """Adopted attempts of a campaign whose cells are not serving runs."""
        return self._campaign(campaign).ledger.frame()

    def attempts(self, campaign: str) -> pd.DataFrame:
        """Every attempt of a campaign whose cells are not serving runs."""
        return self._campaign(campaign).attempts

    def request_table(self, campaign: str, cell_id: str) -> pd.DataFrame:
        """Requests of a run, one per row."""
        return self._campaign(campaign).ledger.request_table(cell_id)

    def step_table(self, campaign: str, cell_id: str) -> pd.DataFrame | None:
        """Stretches of steps of a run, one per row; None if the run kept none."""
        try:
            return self._campaign(campaign).ledger.step_table(cell_id)
        except NoTableError:
            return None

    def _select(self, campaign: str, block: str, design: Design, seeds: tuple[int, ...]) -> Runs:
        try:
            ledger = self._campaign(campaign)
            return Runs.select(
                ledger.attempts,
                campaign=campaign,
                design=design,
                seeds=seeds,
                block=block,
                traces=ledger.traces,
            )
        except NoLedgerError as missing:
            why = str(missing)
        except NoRunsError:
            why = f"no adopted run of block {block} for seeds {format_seeds(sorted(seeds))}"
        return Runs.absent(campaign=campaign, design=design, seeds=seeds, why=why)

    def _campaign(self, campaign: str) -> "_Campaign":
        if campaign not in self._campaigns:
            self._campaigns[campaign] = _Campaign(
                campaign, self.root / campaign, self._paths.get(campaign)
            )
        return self._campaigns[campaign]


class _Campaign:
    """One campaign's ledger, found and read when first needed."""

    def __init__(self, campaign: str, folder: Path, path: Path | None) -> None:
        self._campaign = campaign
        self._folder = folder
        self._path = path

    @cached_property
    def path(self) -> Path:
        if self._path is not None:
            return self._path
        engines = engines_below(self._folder)
        if not engines:
            raise NoLedgerError(
                f"{self._folder}: there is no ledger; run `python -m hsexp "
                f"campaign={self._campaign}` first, or name one with ledger="
            )
        if len(engines) > 1:
            raise AnalysisError(
                f"{self._folder} has ledgers of {len(engines)} engines, which are never mixed; "
                f"name one: {', '.join(f'ledger={path}' for path in engines)}"
            )
        return engines[0]

    @cached_property
    def ledger(self) -> Ledger:
        try:
            return Ledger.read(self.path)
        except LedgerError as error:
            raise AnalysisError(str(error)) from None

    @cached_property
    def attempts(self) -> pd.DataFrame:
        return self.ledger.attempts()

    @cached_property
    def traces(self) -> Histories:
        return Histories(self.ledger.trace_table)


def read_ledger(path: Path) -> tuple[Ledger, pd.DataFrame]:
    """A ledger by its folder, and the rows that an analysis uses.

    Raises:
        AnalysisError: it is absent or damaged, or mixes origins.
    """
    try:
        ledger = Ledger.read(path)
        return ledger, ledger.frame()
    except LedgerError as error:
        raise AnalysisError(str(error)) from None


def common_origin(runs: Iterable[Runs]) -> Origin:
    """The origin that all runs share; absent runs are ignored.

    Raises:
        NoRunsError: none has a run.
        AnalysisError: they come from different engines, devices or time models.
    """
    every = list(runs)
    origins = {each.known_origin for each in every} - {None}
    if len(origins) > 1:
        raise AnalysisError(
            f"runs of one table must share their origin; got {' and '.join(map(str, origins))}"
        )
    for origin in origins:
        if origin is not None:
            return origin
    reasons = dict.fromkeys(f"campaign {each.campaign}: {each.why_absent}" for each in every)
    raise NoRunsError("; ".join(reasons))


Need = tuple[Runs, Iterable[Arm], Iterable[str]]
"""Runs, with the arms and metrics that are needed from them."""


def missing_cells(needs: Iterable[Need]) -> tuple[str, ...]:
    """Missing cells of several blocks, in few lines (`describe`)."""
    return describe(gap for runs, arms, metrics in needs for gap in runs.gaps(arms, metrics))
