"""Conversations: each prompt is the former prompt, the former output and a new message.

    turn 1   [ system ][ message 1 ]| answer 1 |
    turn 2   [ system ][ message 1 ][ answer 1 ][ message 2 ]| answer 2 |
               shared    \\_____ shared with turn 1 ______/

An answer is content like any other: the next prompt holds what the turn before it generates. The
load is open: a turn arrives a think time after the ARRIVAL of the turn before it, whether that one
has ended or not.
"""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config
from hsexp.config.fields import Name
from hsexp.workload.arrivals import ArrivalsConfig, arrival_times
from hsexp.workload.lengths import GammaTokens, LognormalTokens
from hsexp.workload.prefixes import Prefixes
from hsexp.workload.request import Segment, Workload


class ConversationWorkload(Config):
    """Conversations over several turns. They fix their own sharing."""

    kind: Literal["conversations"]
    name: Name
    num_conversations: PositiveInt
    turns_mean: Annotated[float, Field(ge=1.0)]
    """Mean of the geometric law of the number of turns, before `turns_max` cuts it."""
    turns_max: PositiveInt
    system_tokens: Annotated[int, Field(ge=0)]
    """Length of the system prompt that all conversations begin with; 0 is none."""
    first_message: LognormalTokens
    message: LognormalTokens
    """Each later message of the user."""
    output: GammaTokens
    think_mean_s: PositiveFloat
    """Mean of the exponential time from the arrival of a turn to that of the next one."""
    max_tokens: PositiveInt
    """Longest prompt with its output; a conversation ends before a turn that would exceed it."""

    @model_validator(mode="after")
    def _first_turns_fit(self) -> Self:
        longest = self.system_tokens + self.first_message.max_tokens + self.output.max_tokens
        if longest > self.max_tokens:
            raise ValueError(
                f"max_tokens {self.max_tokens} must hold every first turn: system_tokens, "
                f"first_message.max_tokens and output.max_tokens are {longest} together"
            )
        return self

    @property
    def expected_turns(self) -> float:
        """Mean number of turns after the cut at `turns_max`: sum of P(turns >= k)."""
        return float(sum(self._goes_on**k for k in range(self.turns_max)))

    @property
    def _goes_on(self) -> float:
        """Probability of a further turn."""
        return 1.0 - 1.0 / self.turns_mean


def converse(spec: ConversationWorkload, arrivals: ArrivalsConfig, seed: int) -> Workload:
    """Draw the conversations of one seed.

    Conversations begin by `arrivals` at its rate over the expected number of turns, so that a long
    run carries `rate_per_s` requests per second. A run has fewer at its begin and at its end.

    One generator per seed, draws in a fixed order: numbers of turns, first messages, later
    messages, outputs, gaps between conversations, think times; `turns_max` of each for every
    conversation, used or not.
    """
    rng = np.random.default_rng(seed)
    turns = (spec.num_conversations, spec.turns_max)
    num_turns = np.minimum(rng.geometric(1.0 / spec.turns_mean, size=turns[0]), spec.turns_max)
    messages = np.concatenate(
        [spec.first_message.draw(rng, (turns[0], 1)), spec.message.draw(rng, turns)[:, 1:]], axis=1
    )
    outputs = spec.output.draw(rng, turns)
    times = _turn_times(spec, arrivals, rng)

    prefixes = Prefixes()
    drawn = []
    for conversation in range(spec.num_conversations):
        history = _system_prompt(spec, prefixes)
        for turn in range(num_turns[conversation]):
            end = history[-1].end_tokens if history else 0
            prompt_tokens = end + int(messages[conversation, turn])
            output_tokens = int(outputs[conversation, turn])
            if prompt_tokens + output_tokens > spec.max_tokens:
                break
            for end, speaker in [
                (prompt_tokens, "user"),
                (prompt_tokens + output_tokens, "assistant"),
            ]:
                history.append(
                    prefixes.extend(
                        history[-1] if history else None,
                        (conversation, turn, speaker),
                        end,
                        generated=speaker == "assistant",
                    )
                )
            drawn.append((times[conversation][turn], prompt_tokens, output_tokens, tuple(history)))
    drawn.sort(key=lambda turn: turn[0])
    return Workload.numbered(spec.name, drawn)


def _turn_times(
    spec: ConversationWorkload, arrivals: ArrivalsConfig, rng: Generator
) -> list[list[float]]:
    """Arrival of each turn of each conversation, seconds, in whole nanoseconds."""
    of_conversations = arrivals.model_copy(
        update={"rate_per_s": arrivals.rate_per_s / spec.expected_turns}
    )
    begins = arrival_times(of_conversations, spec.num_conversations, rng)
    thinking = rng.exponential(spec.think_mean_s, size=(spec.num_conversations, spec.turns_max))
    thinking[:, 0] = 0.0
    times = np.array(begins)[:, None] + np.cumsum(thinking, axis=1)
    return [[round(time, 9) for time in row] for row in times.tolist()]


def _system_prompt(spec: ConversationWorkload, prefixes: Prefixes) -> list[Segment]:
    if spec.system_tokens == 0:
        return []
    return [prefixes.extend(None, "system", spec.system_tokens)]
