"""The record of runs: append-only, crash-safe, shared by processes; see `store`."""

from hsexp.ledger.attempt import Attempt, EngineFacts, Metric, is_simulated
from hsexp.ledger.frame import require_comparable
from hsexp.ledger.journal import LedgerError, NoTableError
from hsexp.ledger.provenance import Provenance
from hsexp.ledger.store import Claim, Ledger, utc_now
from hsexp.ledger.tables import EncodedTable, encode_arrow, encode_table

__all__ = [
    "Attempt",
    "Claim",
    "EncodedTable",
    "EngineFacts",
    "Ledger",
    "LedgerError",
    "Metric",
    "NoTableError",
    "Provenance",
    "encode_arrow",
    "encode_table",
    "is_simulated",
    "require_comparable",
    "utc_now",
]
