"""Mooncake traces: JSON lines whose 512-token block hashes become shared content.

    {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}

    hash_ids        [   46    ][   47    ][  2353 ]
    end_tokens             512       1,024    1,100      the last block may be partial

A segment's content id stands for the whole chain of hashes up to it, so equal ids mean equal
prefixes even if a hash recurs at another place.
"""

import json
from collections.abc import Iterator
from typing import Any

from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment
from hsexp.workload.traces.source import Source, TraceRow

HASH_BLOCK_TOKENS = 512
"""Tokens of one hashed block: fixed by the trace format."""

_MILLISECOND_NS = 1_000_000


def read_mooncake(source: Source) -> Iterator[TraceRow]:
    """Rows of a Mooncake trace.

    The trace is in order of time: a row that goes backwards is refused. The number of hashes must
    fit the input length.
    """
    prefixes = Prefixes()
    latest_ns = 0
    for number, text in source.lines():
        record = _record(source, number, text)
        time_ms = source.field(number, record, "timestamp")
        time_ns = source.time_ns(number, "timestamp", time_ms, unit_ns=_MILLISECOND_NS)
        if time_ns < latest_ns:
            raise source.error(number, f"timestamp {time_ms:g} is earlier than the row before it")
        latest_ns = time_ns
        prompt_tokens = source.length(
            number, "input_length", source.field(number, record, "input_length")
        )
        yield TraceRow(
            line=number,
            time_ns=time_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=source.length(
                number, "output_length", source.field(number, record, "output_length")
            ),
            segments=_blocks(
                prefixes, _hashes(source, number, record, prompt_tokens), prompt_tokens
            ),
        )


def _record(source: Source, number: int, text: str) -> dict[str, Any]:
    twice: set[str] = set()

    def note_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.update(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        record = json.loads(text, object_pairs_hook=note_twice)
    except json.JSONDecodeError as error:
        raise source.error(
            number, f"not a whole JSON object ({error.msg} at column {error.colno})"
        ) from None
    except (ValueError, RecursionError) as error:  # too many digits, too deep
        raise source.error(number, f"not a JSON object of a trace ({error})") from None
    if not isinstance(record, dict):
        raise source.error(number, f"expected a JSON object, got {text[:60]}")
    if twice:
        raise source.error(number, f"the fields {sorted(twice)} occur twice")
    return record


def _hashes(source: Source, number: int, record: dict[str, Any], prompt_tokens: int) -> list[int]:
    hashes = source.field(number, record, "hash_ids")
    if not isinstance(hashes, list) or not all(type(value) is int for value in hashes):
        raise source.error(number, "hash_ids must be a list of whole numbers")
    expected = -(-prompt_tokens // HASH_BLOCK_TOKENS)
    if len(hashes) != expected:
        raise source.error(
            number,
            f"input_length {prompt_tokens} needs {expected} hash_ids of {HASH_BLOCK_TOKENS} "
            f"tokens, got {len(hashes)}",
        )
    return hashes


def _blocks(prefixes: Prefixes, hashes: list[int], prompt_tokens: int) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    prefix = None
    for i, value in enumerate(hashes, 1):
        prefix = prefixes.extend(prefix, value, min(i * HASH_BLOCK_TOKENS, prompt_tokens))
        segments.append(prefix)
    return tuple(segments)
