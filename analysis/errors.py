"""Errors that the user of an analysis can cause and fix."""


class AnalysisError(Exception):
    """An analysis cannot be done as asked; the message names what is wrong with which value."""


class NoInputsError(AnalysisError):
    """The inputs of a table do not exist; other tables may still have theirs."""


class NoRunsError(NoInputsError):
    """A design has no run."""


class NoLedgerError(NoRunsError):
    """A campaign has no ledger."""
