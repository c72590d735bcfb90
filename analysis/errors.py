"""The one error that a reader of a ledger can cause and can fix."""


class AnalysisError(Exception):
    """An analysis cannot be done as asked; the message names what is wrong with which value."""
