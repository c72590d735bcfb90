"""Compares treated requests with their isolated recomputations."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Run = dict[str, Any]
"""What one run of an engine reports; see `runners.continuation.engine`."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A treated run, and what its requests are compared with."""

    run: Run
    reference_of: Mapping[str, str]
    """Name of the reference, by the name of the request."""
    unmet: Sequence[str]
    """Fidelity conditions that did not hold."""


_EVENTS = ("preemptions", "lost_checkpoints", "reclaimed_slabs", "retained_checkpoints")
"""Counters of the memory that show that a treatment happened."""


def compare(treated: Sequence[Compared], references: tuple[Run, Run]) -> dict[str, Any]:
    """All requests of a treatment, in plain data.

    Args:
        references: every request alone, in two engines.

    Returns:
        "requests": one row each (`runners.continuation.execute.REQUEST_COLUMNS`); "events": totals
        of what happened; "unmet": conditions that did not hold.
    """
    events: Counter[str] = Counter(dict.fromkeys((*_EVENTS, "preempted_outputs"), 0))
    for one in treated:
        events.update({name: one.run["counters"][name] for name in _EVENTS})
        events["preempted_outputs"] += sum(one.run["generated_when_preempted"])
    return {
        "requests": [row for one in treated for row in _rows(one, *references)],
        "events": dict(events),
        "unmet": sorted({text for one in treated for text in one.unmet}),
    }


def _rows(one: Compared, first: Run, second: Run) -> Iterator[dict[str, Any]]:
    run = one.run
    for request, name in one.reference_of.items():
        states, alone = run["states"].get(request, {}), first["states"].get(name, {})
        both = states.keys() & alone.keys()
        yield {
            "request": request,
            "adopted_tokens": run["cached"][request],
            "stable_reference": _is_stable(first, second, name),
            "equal_tokens": run["tokens"][request] == first["tokens"][name],
            "equal_logprobs": run["logprobs"][request] == first["logprobs"][name],
            "max_logprob_difference": logprob_difference(
                run["tokens"][request],
                run["logprobs"][request],
                first["tokens"][name],
                first["logprobs"][name],
            ),
            "num_states": len(both),
            "num_equal_states": sum(states[at] == alone[at] for at in both),
        }


def _is_stable(first: Run, second: Run, name: str) -> bool:
    """Both reused nothing and gave the same."""
    return all(
        first[what].get(name) == second[what].get(name) for what in ("tokens", "logprobs", "states")
    ) and not (first["cached"][name] or second["cached"][name])


def logprob_difference(
    tokens: Sequence[int],
    logprobs: Sequence[Mapping[str, float]],
    other_tokens: Sequence[int],
    other_logprobs: Sequence[Mapping[str, float]],
) -> float:
    """Largest difference of a token's logprob, up to the first token that differs: behind it the
    two continue different texts."""
    largest = 0.0
    for token, ours, other, theirs in zip(
        tokens, logprobs, other_tokens, other_logprobs, strict=True
    ):
        common = ours.keys() & theirs.keys()
        largest = max(largest, *(abs(ours[key] - theirs[key]) for key in common), 0.0)
        if token != other:
            break
    return largest
