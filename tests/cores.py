"""Tests and the core that they run on: the compiled one cannot be patched, nor subclassed.

`make test-light` runs the files with such tests on the pure core as well, where none is skipped;
`make test-cores` runs all of the memory's and of the simulator's on each.
"""

from typing import Any

import pytest

from hsexp.core import CORE

IS_COMPILED = CORE.name == "compiled"

_REASON = "the compiled core cannot be patched; HSEXP_CORE=pure runs it"

pure_only = pytest.mark.skipif(IS_COMPILED, reason=_REASON)


def replace_method(owner: object, name: str, method: Any) -> None:
    """Give an object of the core another method; on the compiled core the test is skipped."""
    if IS_COMPILED:
        pytest.skip(_REASON)
    setattr(owner, name, method)


def require_physical(organization: str) -> None:
    """Skip a test whose physical memory (`toy_model`) has to patch the store of this organization:
    in S3 a block of a slab gets new owners without its page."""
    if organization == "s3" and IS_COMPILED:
        pytest.skip(_REASON)
