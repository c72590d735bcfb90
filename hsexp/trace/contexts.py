"""What decoding requests have in memory before each step: the context that the step reads."""

import numpy as np
from numpy.typing import NDArray

from hsexp.trace.schema import TraceError
from hsexp.trace.trace import Trace
from hsexp.trace.work import lives


def decode_contexts(trace: Trace) -> NDArray[np.float64]:
    """Tokens of all decoding requests before a step, for each row of steps; of several equal steps
    the mean.

    A request decodes in every step from the one after its last chunk on:

        last chunk ends at 40     | chunk | decode | decode | decode |
        tokens before the step               40       41       42

    Raises:
        TraceError: decodes stood still in some step, so that lengths do not follow from lives.
    """
    rows = trace.rows("step")
    size = max((row.step + row.count for row in rows), default=0)
    tokens = np.zeros(size, dtype=np.int64)
    decodes = np.zeros(size, dtype=np.int64)
    for life in lives(trace):
        if life.last_chunk_step is None or not life.decode_tokens:
            continue
        first = life.last_chunk_step + 1
        steps = slice(first, first + life.decode_tokens)
        decodes[steps] += 1
        tokens[steps] += life.prefilled_to + np.arange(len(tokens[steps]))
    means = np.zeros(len(rows))
    for place, row in enumerate(rows):
        steps = slice(row.step, row.step + row.count)
        if (decodes[steps] != row.decode_tokens).any():
            raise TraceError(
                f"step {row.step} decodes {row.decode_tokens} tokens, and {decodes[row.step]} "
                "requests are between their last chunk and their end"
            )
        means[place] = tokens[steps].mean()
    return means
