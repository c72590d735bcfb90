"""Compares what engines answered: bits where the schedule was the same, tokens where it was not.

A result is what `serve_waves.py` writes. Matrices of another batch add up in another order, so
engines with different schedules agree in tokens, and even there the choice between two tokens that
are nearly as likely may fall differently: then the answers differ from there on, which is counted
as a tie.
"""

from dataclasses import dataclass, field
from typing import Any

TIE = 0.05
"""Difference of logarithms of probability below which bfloat16 may prefer either token."""


@dataclass(kw_only=True)
class Comparison:
    """Two engines."""

    what: str
    requests: int = 0
    in_bits: int = 0
    """Requests whose tokens and probabilities had to be, and were, the same bits."""
    ties: int = 0
    faults: list[str] = field(default_factory=list)


def compare(
    what: str, ours: dict[str, Any], theirs: dict[str, Any], *, bits_in: tuple[int, ...] = ()
) -> Comparison:
    """Compare two results, wave by wave.

    Args:
        bits_in: waves whose schedules must be the same, and so the bits. In others bits are asked
            for where the schedules happen to be the same.
    """
    found = Comparison(what=what)
    if len(ours["waves"]) != len(theirs["waves"]):
        found.faults.append(f"{len(ours['waves'])} and {len(theirs['waves'])} waves")
        return found
    is_one_past = True
    """Whether all waves before had the same schedules, and so left the same bits in the caches."""
    for number, (mine, other) in enumerate(zip(ours["waves"], theirs["waves"], strict=True)):
        is_same = mine["schedule"] == other["schedule"] and mine["schedule"] is not None
        is_one_past = is_one_past and is_same
        if number in bits_in and not is_same:
            found.faults.append(f"wave {number}: schedules differ")
        for index, (answer, expected) in enumerate(
            zip(mine["outputs"], other["outputs"], strict=True)
        ):
            found.requests += 1
            place = f"wave {number}, request {index}"
            if is_one_past or number in bits_in:
                _compare_bits(found, place, answer, expected)
            else:
                _compare_tokens(found, place, answer, expected)
    return found


def _compare_bits(
    found: Comparison, place: str, answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    if answer["tokens"] != expected["tokens"]:
        found.faults.append(f"{place}: tokens differ under one schedule")
    elif answer["logprobs"] != expected["logprobs"]:
        found.faults.append(f"{place}: bits of probabilities differ under one schedule")
    else:
        found.in_bits += 1


def _compare_tokens(
    found: Comparison, place: str, answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    if len(answer["tokens"]) != len(expected["tokens"]):
        found.faults.append(
            f"{place}: {len(answer['tokens'])} and {len(expected['tokens'])} tokens"
        )
        return
    pairs = zip(answer["tokens"], expected["tokens"], strict=True)
    for position, (token, other) in enumerate(pairs):
        if token == other:
            continue
        if _is_tie(expected["logprobs"][position], token, other):
            found.ties += 1
        else:
            found.faults.append(f"{place}: token {position} is {token}, expected {other}")
        return  # what follows continues another text


def _is_tie(logprobs: dict[str, float], token: int, other: int) -> bool:
    """Whether the other engine's two best tokens are these, and nearly as likely."""
    ours, theirs = logprobs.get(str(token)), logprobs.get(str(other))
    return ours is not None and theirs is not None and abs(ours - theirs) < TIE
