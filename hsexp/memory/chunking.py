"""Where a prefill chunk may end, so that states fall on checkpoint boundaries."""


def chunk_tokens(computed: int, num_tokens: int, left: int, *, grid: int) -> int:
    """Tokens of the next chunk; 0 when what is left of the budget reaches no boundary.

    A chunk ends on the checkpoint grid or with the prompt. It stops at the last boundary that can
    be cached, and, should it start off the grid, at the next one.

    Args:
        computed: tokens that have state in memory.
        num_tokens: tokens that must have state before the next one can be generated.
        left: tokens that the step can still take.
        grid: tokens between checkpoint boundaries.
    """
    end = min(computed + left, num_tokens)
    if computed % grid:
        return max(min(end, (computed // grid + 1) * grid) - computed, 0)
    last_boundary = num_tokens // grid * grid
    if computed < last_boundary:
        end = min(end, last_boundary)
    if end < num_tokens:
        end = end // grid * grid
    return max(end - computed, 0)
