"""hsexp: memory organizations for serving hybrid attention + SSM language models."""

from pathlib import Path
from typing import TYPE_CHECKING

from hsexp.core import install

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"

install()


def load(ledger: str | Path, *, root: str | Path = "ledgers") -> "pd.DataFrame":
    """The accepted runs of a ledger, one row each: `hsexp.load("q6")`; see `hsexp.runs.load`."""
    from hsexp.runs import load as read  # pandas only where a ledger is read

    return read(ledger, root=root)
