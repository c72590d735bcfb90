"""Compares treated requests with their isolated recomputations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Run = dict[str, Any]
"""What one run of an engine tells; see `runners.continuation.engine`."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A treated run, and what its requests are compared with."""

    run: Run
    reference_of: Mapping[str, str]
    """Name of the reference, by the key of the arrival."""
    unmet: Sequence[str]
    """Fidelity conditions that did not hold."""


def compare(treated: Sequence[Compared], references: tuple[Run, Run]) -> dict[str, Any]:
    """Counts over all requests of a treatment, in plain data.

    Args:
        references: every request alone, in two engines.

    Returns:
        "counts": requests, those with equal tokens, those with bit-identical logprobs, states that
        both runs have at a boundary, those of equal bytes, references that were stable, treatment
        events; "max_logprob_difference" over positions with the same history; "unmet" conditions.
    """
    counts: dict[str, int] = dict.fromkeys(
        (
            "num_requests",
            "num_equal_tokens",
            "num_equal_logprobs",
            "num_states",
            "num_equal_states",
            "num_stable_references",
            "num_adopted",
            "num_preemptions",
            "num_preempted_outputs",
            "num_lost_checkpoints",
            "num_reclaimed_slabs",
            "num_retained_checkpoints",
        ),
        0,
    )
    difference = 0.0
    unmet: list[str] = []
    first, second = references
    for one in treated:
        run = one.run
        unmet += one.unmet
        for name, counter in _COUNTERS.items():
            counts[name] += run["counters"][counter]
        counts["num_preempted_outputs"] += sum(run["generated_when_preempted"])
        for key, name in one.reference_of.items():
            counts["num_requests"] += 1
            counts["num_stable_references"] += _is_stable(first, second, name)
            counts["num_adopted"] += run["cached"][key] > 0
            counts["num_equal_tokens"] += run["tokens"][key] == first["tokens"][name]
            counts["num_equal_logprobs"] += run["logprobs"][key] == first["logprobs"][name]
            states, alone = run["states"].get(key, {}), first["states"].get(name, {})
            both = states.keys() & alone.keys()
            counts["num_states"] += len(both)
            counts["num_equal_states"] += sum(states[at] == alone[at] for at in both)
            difference = max(
                difference,
                logprob_difference(
                    run["tokens"][key],
                    run["logprobs"][key],
                    first["tokens"][name],
                    first["logprobs"][name],
                ),
            )
    return {"counts": counts, "max_logprob_difference": difference, "unmet": sorted(set(unmet))}


_COUNTERS = {
    "num_preemptions": "preemptions",
    "num_lost_checkpoints": "lost_checkpoints",
    "num_reclaimed_slabs": "reclaimed_slabs",
    "num_retained_checkpoints": "retained_checkpoints",
}


def _is_stable(first: Run, second: Run, name: str) -> bool:
    """Both adopted nothing and gave the same."""
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
