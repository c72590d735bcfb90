"""The scheduler's own error. It has a module to itself, because an error class is not compiled."""


class NoProgress(RuntimeError):
    """Nothing can run, or requests only preempt each other; names the one that is stuck."""
