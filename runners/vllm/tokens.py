"""A workload as token ids: equal content gives equal tokens, other content differs at once.

    prompt   [ shared content 4 ........ ][ private to request 17 ... ]
             | 8 0 0 0 drawn from seed 8 | 35 0 0 0 drawn from seed 35
               identity                    identity

Every stretch starts with its identity, digit by digit with the vocabulary as base, so that two
contents differ in the first block that they do not share, whatever the draws are.

An output that a later prompt holds must be known before it is generated, since that prompt may be
sent before it ends. So it is one token again and again, and the engine may generate no other one:

    turn 1   [ shared content 0 ][ message, content 1 ]| 7 7 7 7 7 7 |
    turn 2   [ shared content 0 ][ message, content 1 ][ 7 7 7 7 7 7 ][ message, content 3 ]
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hsexp.workload import Request, Segment

SPECIAL_TOKENS = 3
"""The first ids of a vocabulary: padding, start, end."""

_IDENTITY_DIGITS = 4

_MOST_BIAS = 100.0
"""The largest bias that vLLM passes on; logits are far closer together than that."""


def prompt_tokens(request: Request, vocabulary: int) -> list[int]:
    """The prompt of a request, `prompt_tokens` ids in [SPECIAL_TOKENS, vocabulary)."""
    tokens: list[int] = np.concatenate(list(_stretches(request, vocabulary))).tolist()
    return tokens


def output_token(request: Request, vocabulary: int) -> int | None:
    """The only token that the engine may generate for a request; None if it may generate any."""
    last = request.segments[-1] if request.segments else None
    if last is None or last.end_tokens <= request.prompt_tokens:
        return None
    return _repeated(last, vocabulary)


def bias_to(token: int) -> dict[int, float]:
    """A bias of the logits with which the engine generates no other token.

    `allowed_token_ids` would say it more plainly, but vLLM 0.27.1 does not move its mask with a
    request: two requests that change places in a batch then share the mask of one of them.
    """
    return {token: _MOST_BIAS}


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


def _stretches(request: Request, vocabulary: int) -> Iterator[NDArray[np.int64]]:
    """The prompt, part by part. Even identities are shared, odd ones private."""
    start = 0
    for segment in request.segments:
        end = min(segment.end_tokens, request.prompt_tokens)
        if segment.generated:
            yield np.full(end - start, _repeated(segment, vocabulary), dtype=np.int64)
        else:
            yield _stretch(2 * segment.content_id, start, end, vocabulary)
        start = end
    if start < request.prompt_tokens:
        yield _stretch(2 * request.request_id + 1, start, request.prompt_tokens, vocabulary)


def _repeated(output: Segment, vocabulary: int) -> int:
    """The token of which an output consists."""
    return SPECIAL_TOKENS + output.content_id % (vocabulary - SPECIAL_TOKENS)


def _stretch(identity: int, start: int, end: int, vocabulary: int) -> NDArray[np.int64]:
    base = vocabulary - SPECIAL_TOKENS
    # One draw of the generator a token, so that a longer stretch begins like a shorter one.
    drawn = np.random.default_rng(identity).random(end - start)
    tokens = (drawn * base).astype(np.int64)
    digits = [identity // base**place % base for place in range(_IDENTITY_DIGITS)][: end - start]
    tokens[: len(digits)] = digits
    return tokens + SPECIAL_TOKENS
