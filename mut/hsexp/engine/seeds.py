"""Seeded requests in chunks, on a CPU.

Every row of a step is sampled, and what is sampled of an unfinished prompt is discarded. vLLM takes
the draw back by the generator's offset, which a CPU's generators do not have: a seeded request
whose prompt is computed in more than one chunk would stop the engine. Here its state is restored.
"""

from collections.abc import Callable
from typing import Any

import torch


def keep_seeds(runner: Any) -> None:
    """Leave the generators of unfinished prompts as they were, where vLLM cannot."""
    if runner.device.type == "cpu":
        runner._sample = _restoring(runner, runner._sample)
        runner._bookkeeping_sync = _without_offsets(runner, runner._bookkeeping_sync)


def _restoring(runner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    def sample(*args: Any, **kwargs: Any) -> Any:
        before = [(each, each.get_state()) for each in _discarded(runner).values()]
        output = stock(*args, **kwargs)
        for generator, state in before:
            generator.set_state(state)
        return output

    return sample


def _without_offsets(runner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    def bookkeeping_sync(*args: Any, **kwargs: Any) -> Any:
        generators, discarded = runner.input_batch.generators, _discarded(runner)
        for row in discarded:
            del generators[row]
        result = stock(*args, **kwargs)
        generators.update(discarded)
        return result

    return bookkeeping_sync


def _discarded(runner: Any) -> dict[int, torch.Generator]:
    """By row, the generators of requests whose sample of this step is discarded."""
    discarded = runner.discard_request_mask.np
    return {row: each for row, each in runner.input_batch.generators.items() if discarded[row]}
