"""Checks that requests, tokens and memory of a finished run balance, whatever happened in it.

    prefill tokens of the steps    = first executions + replays
    prompt of a request            = adopted + prefilled, unless it was preempted
    decode tokens of the steps     = generated - prefills that ran to their end
    prefills that ran to their end : one for each finished request, and at most one a preemption

The last prefill chunk yields a token, and tokens generated before a preemption are replayed as
prefill; so no token is generated twice, and each comes from a decode or from the end of a prefill.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hsexp.measure.records import RunRecord
from hsexp.memory.hybrid import HybridMemory


class Imbalance(RuntimeError):
    """A run's totals contradict each other, or its memory was not given back."""


def check_balance(record: RunRecord, memory: HybridMemory) -> None:
    """Compare totals that must be equal at the end of a run. It costs a few sums.

    Raises:
        Imbalance: names the totals that differ, with both values.
    """
    check_requests(record.requests)
    check_tokens(record)
    _check_memory(memory)


def check_requests(requests: pd.DataFrame) -> None:
    """Check that each request was served whole or not at all. Measured runs pass it too.

    Raises:
        Imbalance: names the totals that differ, with both values.
    """
    finished, refused = _has_status(requests, "finished"), _has_status(requests, "refused")
    _equal("requests finished or refused", int((finished | refused).sum()), len(requests))
    generated, prompt = _ints(requests, "generated_tokens"), _ints(requests, "prompt_tokens")
    replayed = _ints(requests, "replayed_tokens")
    covered = _ints(requests, "adopted_tokens") + _ints(requests, "prefill_tokens")
    undisturbed = finished & (_ints(requests, "num_preemptions") == 0)
    output = np.where(finished, _ints(requests, "output_tokens"), 0)
    expected = np.where(undisturbed, prompt, np.minimum(covered, prompt * finished))
    _equal_each("generated_tokens", requests, generated, output)
    _equal_each("adopted_tokens + prefill_tokens", requests, covered, expected)
    _equal_each("replayed_tokens", requests, replayed, np.where(undisturbed | refused, 0, replayed))
    replayed_output = _ints(requests, "replayed_output_tokens")
    bounded = np.clip(replayed_output, 0, replayed)
    _equal_each("replayed_output_tokens", requests, replayed_output, bounded)


def check_tokens(record: RunRecord) -> None:
    """Check that steps and requests count the same tokens. Measured runs pass it too.

    Raises:
        Imbalance: names the totals that differ, with both values.
    """
    requests, steps = record.requests, record.steps
    first_step, num_steps = _ints(steps, "first_step"), _ints(steps, "num_steps")
    _equal("steps out of sequence", int((np.diff(first_step) != num_steps[:-1]).sum()), 0)
    prefill = int((num_steps * _ints(steps, "prefill_tokens")).sum())
    submitted = _ints(requests, "prefill_tokens") + _ints(requests, "replayed_tokens")
    _equal("prefill tokens of the steps", prefill, int(submitted.sum()))

    num_finished = int(_has_status(requests, "finished").sum())
    num_preemptions = int(_ints(requests, "num_preemptions").sum())
    _equal("preemptions of the memory", record.counters["preemptions"], num_preemptions)
    decode = int((num_steps * _ints(steps, "decode_tokens")).sum())
    ended_prefills = int(_ints(requests, "generated_tokens").sum()) - decode
    if not num_finished <= ended_prefills <= num_finished + num_preemptions:
        raise Imbalance(
            f"tokens generated but not decoded: {ended_prefills}, expected one for each of "
            f"{num_finished} finished requests and at most one for each of {num_preemptions} "
            f"preemptions"
        )


def _check_memory(memory: HybridMemory) -> None:
    """Check that everything was given back: all cached entries are in free pages."""
    _equal("live requests in memory", len(memory.cache.sequences), 0)
    _equal("pins", memory.pinning.num_pins, 0)
    for pool in memory.cache.pools:
        _equal(f"free pages of pool {pool.spec.name}", pool.num_free, pool.spec.num_usable)


def _equal(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Imbalance(f"{what}: {found}, expected {expected}")


def _equal_each(
    what: str, requests: pd.DataFrame, found: NDArray[np.int64], expected: NDArray[np.int64]
) -> None:
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        row = int(wrong[0])
        raise Imbalance(
            f"{what} of request {requests['request_id'].iloc[row]}: {found[row]}, "
            f"expected {expected[row]} ({wrong.size} requests differ)"
        )


def _has_status(requests: pd.DataFrame, status: str) -> NDArray[np.bool_]:
    return (requests["status"] == status).to_numpy(dtype=bool)


def _ints(frame: pd.DataFrame, column: str) -> NDArray[np.int64]:
    return frame[column].to_numpy(dtype=np.int64)
