"""Metrics that a run's summary lacks, from its step table or from the requests of its block."""

from dataclasses import replace

from analysis import config as configs
from analysis.families import Contrast
from analysis.ledgers import Ledgers
from analysis.runs import Runs
from analysis.tables.submitted_work import phase_times_s
from hsexp.config.arm import Arm
from hsexp.ledger import NoTableError
from hsexp.measure.goodput import goodput_tok_per_s, union_thresholds

_PHASES = {
    "prefill_only_s": "Prefill-only",
    "decode_only_s": "Decode-only",
    "mixed_s": "Mixed",
}
"""Phase of Table E-8, by metric: the summed durations of its steps."""

_GOODPUT = {"goodput_comparator_tok_per_s": False, "goodput_union_tok_per_s": True}
"""Goodput of Table E-13, by metric: whether both arms' requests give the thresholds."""


def with_metrics(runs: Runs, ledgers: Ledgers, metrics: list[str]) -> Runs:
    """The runs with a column for each such metric that is asked for and not there yet.

    A run without its table lacks the metric.
    """
    columns: dict[str, dict[str, float]] = {}
    wanted = set(metrics) - set(runs.adopted)
    if wanted & _PHASES.keys():
        columns |= _phases(runs, ledgers)
    if wanted & _GOODPUT.keys():
        columns |= _goodput(runs, ledgers)
    if not columns:
        return runs
    cells = runs.adopted["cell_id"]
    added = {name: cells.map(values) for name, values in columns.items()}
    return replace(runs, adopted=runs.adopted.assign(**added), _rows={})


def _phases(runs: Runs, ledgers: Ledgers) -> dict[str, dict[str, float]]:
    columns: dict[str, dict[str, float]] = {name: {} for name in _PHASES}
    for cell in runs.adopted["cell_id"]:
        steps = ledgers.step_table(runs.campaign, cell)
        if steps is None:
            continue
        times = phase_times_s(steps)
        for name, phase in _PHASES.items():
            columns[name][cell] = times[phase]
    return columns


def _goodput(runs: Runs, ledgers: Ledgers) -> dict[str, dict[str, float]]:
    """Goodput of every run under thresholds that the requests of all seeds give (E.8)."""
    family = configs.family("original5")
    places = {(each.campaign, each.block): each for each in family.contrasts}
    contrast = places.get((runs.campaign, runs.block))
    if contrast is None or family.goodput is None:
        return {}
    cells = [cell for arm in _arms(contrast) for cell in runs.cell_ids(arm).values()]
    comparator = set(runs.cell_ids(contrast.denominator).values())
    try:
        tables = {cell: ledgers.request_table(runs.campaign, cell) for cell in cells}
    except NoTableError:
        return {}
    columns = {}
    for name, is_union in _GOODPUT.items():
        given = [table for cell, table in tables.items() if is_union or cell in comparator]
        thresholds = union_thresholds(given, family.goodput.percent)
        columns[name] = {
            cell: value
            for cell, table in tables.items()
            if (value := goodput_tok_per_s(table, thresholds)) is not None
        }
    return columns


def _arms(contrast: Contrast) -> tuple[Arm, Arm]:
    return contrast.numerator, contrast.denominator
