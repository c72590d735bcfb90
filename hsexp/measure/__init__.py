"""Results of a run: records, windows, polls, metrics."""
