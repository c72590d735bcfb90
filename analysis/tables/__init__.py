"""The tables, one function each, named as in the paper.

A module of this package registers its tables (`registry.py`); nothing else lists them.
"""

from dataclasses import replace

from analysis.errors import AnalysisError, NoInputsError
from analysis.families import Adoption
from analysis.ledgers import Ledgers
from analysis.tables.registry import REGISTRY
from analysis.tables.table import Table

TABLES = REGISTRY.gather(__name__, __path__)


def make(name: str, ledgers: Ledgers) -> Table:
    """A table from runs.

    Raises:
        NoInputsError: no campaign of the table has a run.
        AnalysisError: a ledger is damaged, or the adoption does not concern the table.
    """
    _require_adoption(name, ledgers.adoption)
    with ledgers.repeats() as repeats:
        table = TABLES[name].from_ledgers(ledgers)
    return replace(table, notes=(*table.notes, *repeats)) if repeats else table


def derive(name: str, adoption: Adoption = "current") -> Table:
    """A table from published values alone, beside the printed one.

    Raises:
        NoInputsError: the paper does not print the inputs.
        AnalysisError: the adoption does not concern the table.
    """
    _require_adoption(name, adoption)
    entry = TABLES[name]
    if entry.from_paper is None:
        raise NoInputsError(
            f"table {name} cannot be derived from published values; the paper does not print "
            f"{entry.lacks or 'its inputs'}"
        )
    return entry.from_paper(adoption)


def _require_adoption(name: str, adoption: Adoption) -> None:
    if adoption != "current" and not TABLES[name].by_adoption:
        concerned = [each for each, entry in TABLES.items() if entry.by_adoption]
        raise AnalysisError(f"adoption={adoption} concerns {', '.join(concerned)}, not {name}")
