"""A workload as token ids: equal content gives equal tokens, other content differs at once.

    prompt   [ shared content 4 ........ ][ private to request 17 ... ]
             | 8 0 0 0 drawn from seed 8 | 35 0 0 0 drawn from seed 35
               identity                    identity

Every stretch starts with its identity, digit by digit with the vocabulary as base, so that two
contents differ in the first block that they do not share, whatever the draws are.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hsexp.workload import Request

SPECIAL_TOKENS = 3
"""The first ids of a vocabulary: padding, start, end."""

_IDENTITY_DIGITS = 4


def prompt_tokens(request: Request, vocabulary: int) -> list[int]:
    """The prompt of a request, `prompt_tokens` ids in [SPECIAL_TOKENS, vocabulary)."""
    parts = [
        _stretch(identity, start, end, vocabulary) for identity, start, end in _stretches(request)
    ]
    tokens: list[int] = np.concatenate(parts).tolist()
    return tokens


def warmup_prompts(num_prompts: int, num_tokens: int, vocabulary: int) -> list[list[int]]:
    """Prompts that no workload has."""
    return [
        prompt_tokens(
            Request(
                request_id=2**31 + index, arrival_s=0.0, prompt_tokens=num_tokens, output_tokens=1
            ),
            vocabulary,
        )
        for index in range(num_prompts)
    ]


def _stretches(request: Request) -> Iterator[tuple[int, int, int]]:
    """Identity, start and end of each stretch; even identities are shared, odd ones private."""
    start = 0
    for segment in request.segments:
        yield 2 * segment.content_id, start, segment.end_tokens
        start = segment.end_tokens
    if start < request.prompt_tokens:
        yield 2 * request.request_id + 1, start, request.prompt_tokens


def _stretch(identity: int, start: int, end: int, vocabulary: int) -> NDArray[np.int64]:
    base = vocabulary - SPECIAL_TOKENS
    # One draw of the generator a token, so that a longer stretch begins like a shorter one.
    drawn = np.random.default_rng(identity).random(end - start)
    tokens = (drawn * base).astype(np.int64)
    digits = [identity // base**place % base for place in range(_IDENTITY_DIGITS)][: end - start]
    tokens[: len(digits)] = digits
    return tokens + SPECIAL_TOKENS
