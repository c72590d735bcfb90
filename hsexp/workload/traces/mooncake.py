"""Mooncake traces: JSON lines whose 512-token block hashes become shared content.

    {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}

    hash_ids        [   46    ][   47    ][  2353 ]
    end_tokens             512       1,024    1,100      the last block may be partial

A segment's content id stands for the whole chain of hashes up to it, so equal ids mean equal
prefixes even if a hash recurs at another place.
"""

import json
from itertools import islice
from typing import Any

from hsexp.workload.request import Segment
from hsexp.workload.traces.prefixes import Prefixes
from hsexp.workload.traces.source import Source, TraceRow

HASH_BLOCK_TOKENS = 512
"""Tokens of one hashed block: fixed by the trace format."""


def read_mooncake(source: Source, limit: int | None) -> list[TraceRow]:
    """Rows of a Mooncake trace; times count from the first row.

    The trace is in order of time: a row that goes backwards is refused. The number of hashes must
    fit the input length.
    """
    rows: list[TraceRow] = []
    prefixes = Prefixes()
    start_ms: float | None = None
    latest_ms = 0.0
    lines = ((n, text) for n, text in enumerate(source.text.split("\n"), 1) if text.strip())
    for number, text in islice(lines, limit):
        record = _record(source, number, text)
        time_ms = source.time(number, "timestamp", source.field(number, record, "timestamp"))
        start_ms = time_ms if start_ms is None else start_ms
        if time_ms < latest_ms:
            raise source.error(number, f"timestamp {time_ms:g} is earlier than the row before it")
        latest_ms = time_ms
        prompt_tokens = source.length(
            number, "input_length", source.field(number, record, "input_length")
        )
        rows.append(
            TraceRow(
                arrival_s=(time_ms - start_ms) / 1000,
                prompt_tokens=prompt_tokens,
                output_tokens=source.length(
                    number, "output_length", source.field(number, record, "output_length")
                ),
                segments=_blocks(
                    prefixes, _hashes(source, number, record, prompt_tokens), prompt_tokens
                ),
            )
        )
    return rows


def _record(source: Source, number: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise source.error(
            number, f"not a whole JSON object ({error.msg} at column {error.colno})"
        ) from None
    if not isinstance(record, dict):
        raise source.error(number, f"expected a JSON object, got {text[:60]}")
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
