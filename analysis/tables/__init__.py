"""The tables, each by one function, named as in the paper."""

from collections.abc import Callable

from analysis.families import AnalysisConfig
from analysis.runs import Runs
from analysis.tables import b7, b8, headroom_effects, q6_summary
from analysis.tables.table import Table

TABLES: dict[str, Callable[[Runs, AnalysisConfig], Table]] = {
    "B-7": b7.table,
    "B-8": b8.table,
    "headroom-effects": headroom_effects.table,
    "q6-summary": q6_summary.table,
}
