"""Requests that come in waves over shared prefixes, and what is asked of their outputs."""

import random
from typing import Any

import pytest
from small_models import VOCABULARY


def requests_over(
    prefixes: list[int], *, count: int, seed: int, every: list[int], most_tokens: int
) -> list[dict[str, Any]]:
    """Requests that begin with so many tokens of one of three contexts."""
    rng = random.Random(seed)
    contexts = [[rng.randrange(3, VOCABULARY) for _ in range(max(prefixes))] for _ in range(3)]
    requests, add_at = [], 0
    for i in range(count):
        add_at += rng.choice(every)
        prefix = contexts[rng.randrange(3)][: rng.choice(prefixes)]
        suffix = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(3, 70))]
        requests.append(
            {
                "id": str(i),
                "prompt": prefix + suffix,
                "max_tokens": rng.randrange(2, most_tokens),
                "add_at": add_at,
            }
        )
    return requests


def assert_same_outputs(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["outputs"].keys() == expected["outputs"].keys()
    for key, output in expected["outputs"].items():
        ours = result["outputs"][key]
        assert ours["finished"] and ours["tokens"] == output["tokens"]
        for mine, theirs in zip(ours["logprobs"], output["logprobs"], strict=True):
            for token in mine.keys() & theirs.keys():
                assert mine[token] == pytest.approx(theirs[token], abs=1e-4)
