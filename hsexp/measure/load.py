"""Whether a run was offered more than it served, from the metrics of its row alone."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

_NEEDED = ("planned_rate_per_s", "requests_per_s", "queue_mean_s", "e2e_mean_s")


def is_overloaded(row: Mapping[Any, Any]) -> bool | None:
    """Whether requests arrived faster than they were served, and waited longer than they ran.

    A short run serves more slowly than requests arrive without any queue, because it ends with
    the last answer and not with the last arrival. So the rates alone do not tell. None where a
    metric is unknown.
    """
    values: list[Any] = [row.get(name) for name in _NEEDED]
    if any(value is None or pd.isna(value) for value in values):
        return None
    offered, served, queue, whole = map(float, values)
    return served < offered and queue > whole - queue
