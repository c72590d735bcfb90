"""The memory's own error. It has a module to itself, because an error class is not compiled."""


class MemoryFault(RuntimeError):
    """An ownership rule was broken: a page freed twice, or more pages taken than are free."""
