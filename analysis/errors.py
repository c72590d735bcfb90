"""The one error that a reader of a ledger can cause and can fix."""


class AnalysisError(Exception):
    """An analysis cannot be done as asked; the message names what is wrong with which value."""


class NoInputsError(AnalysisError):
    """What a table is made of is not there; another table may have what it needs."""


class NoRunsError(NoInputsError):
    """No run of a design is there."""


class NoLedgerError(NoRunsError):
    """A campaign has no ledger."""
