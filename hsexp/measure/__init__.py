"""What a run gives: records, windows, polls, metrics."""
