"""Sessions of a table of lengths: what a turn shares with the turn before it.

    turn 1   [ prompt 1 ..... ]| answer 1 |
    turn 2   [ prompt 1 ..... ][ answer 1 ][ new ]        its prompt is at least as long as both
    turn 3   [ prompt 2 ......................... ][ new ]   long enough for the prompt alone
    turn 4   [ new .. ]                                   shorter: the history was cut

A table says how long the prompts are, not what they hold. A turn whose prompt is long enough is
taken to begin with the whole history, as a chat does.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment
from hsexp.workload.traces.source import TraceRow


def continued(rows: Sequence[TraceRow]) -> Iterator[TraceRow]:
    """The rows with the history of their sessions as content.

    Args:
        rows: in order of time. What they share already is a prefix below the first turn of each
            session.
    """
    prefixes = Prefixes(
        first_id=1 + max((s.content_id for r in rows for s in r.segments), default=-1)
    )
    num_turns = Counter(row.conversation for row in rows)
    latest: dict[int, tuple[tuple[Segment, ...], Segment]] = {}
    for turn, row in enumerate(rows):
        session = row.conversation
        if session is None or num_turns[session] == 1:
            yield row
            continue
        segments = _history(latest.get(session), row)
        parent = segments[-1] if segments else None
        if parent is None or parent.end_tokens < row.prompt_tokens:
            parent = prefixes.extend(parent, ("prompt", turn), row.prompt_tokens)
            segments = (*segments, parent)
        answer = prefixes.extend(
            parent, ("answer", turn), row.prompt_tokens + row.output_tokens, generated=True
        )
        latest[session] = segments, answer
        yield replace(row, segments=segments, answer=answer)


def _history(
    before: tuple[tuple[Segment, ...], Segment] | None, row: TraceRow
) -> tuple[Segment, ...]:
    """What a turn's prompt begins with."""
    if before is not None:
        prompt, answer = before
        if answer.end_tokens <= row.prompt_tokens:
            return (*prompt, answer)
        if prompt[-1].end_tokens <= row.prompt_tokens:
            return prompt
    return row.segments
