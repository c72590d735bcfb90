"""Figures of the paper from a ledger: `python -m figures campaign=q6`."""
