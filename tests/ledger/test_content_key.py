"""Content keys: equal for equal data, and for nothing else."""

import hashlib
from typing import Any

import numpy as np
import pytest

from hsexp.plan.cells import content_key


def test_the_key_is_the_head_of_the_sha256_of_the_canonical_json() -> None:
    text = '{"a":[1,0.1,null,true],"b":{"c":"é"}}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert content_key({"b": {"c": "é"}, "a": (1, 0.1, None, True)}) == expected


def test_numbers_of_different_meaning_have_different_keys() -> None:
    values: list[Any] = [0.3, 0.1 + 0.2, 1, 1.0, True, "1", None]
    assert len({content_key(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": {"b": float("nan")}}, r"a\.b must be finite, got nan"),
        ({"a": [0.0, float("-inf")]}, r"a\[1\] must be finite, got -inf"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_by_its_place(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        content_key(data)


@pytest.mark.parametrize("data", [{1: "a"}, {"a": {1}}, {"a": b"x"}, {"a": np.int64(1)}])
def test_what_json_would_silently_change_is_refused(data: object) -> None:
    with pytest.raises(TypeError):
        content_key(data)
