"""The two-sided sign-flip test: how often random signs give a mean as far from 0 as observed.

Under the null hypothesis each paired difference is symmetric around 0, so all 2^n sign assignments
are equally likely (Appendix B.5). p is the share of assignments whose absolute mean is at least the
observed absolute mean; the observed assignment and every tie count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MAX_EXACT = 24
"""Default limit for enumerating all assignments."""
RESAMPLES = 99_999
"""Random assignments above that limit; with the observed one they make 100,000."""

_UNITS = 2.0**52
"""Rounded inputs are measured in units of 2^-52 of the sum of their magnitudes."""
_TIE_UNITS = 2**12
"""Sums of rounded inputs closer than this (1e-12 of the sum of magnitudes) are equal."""
_INT64_BITS = 62
_CHUNK = 1 << 14

_FEW = 8
_SIGNS = 2 * (np.arange(1 << _FEW)[:, None] >> np.arange(_FEW) & 1) - 1
"""Signs of up to eight magnitudes: row r has + where bit j of r is set."""


@dataclass(frozen=True, kw_only=True)
class SignFlip:
    """Result of one test."""

    p_value: float
    n: int
    """Differences tested."""
    method: Literal["exact", "Monte Carlo"]
    num_extreme: int
    """Assignments at least as extreme; the observed one is among them."""
    num_assignments: int
    """2^n when exact, else the random ones and the observed one."""


def sign_flip_test(
    differences: Sequence[float | Fraction] | NDArray[np.number[Any]],
    *,
    max_exact: int = MAX_EXACT,
    resamples: int = RESAMPLES,
    rng: np.random.Generator | None = None,
) -> SignFlip:
    """Two-sided sign-flip test of paired differences (relative effects or log ratios).

    Up to `max_exact` differences all 2^n assignments are counted, in 2^(n/2) memory. Beyond, p is
    (b + 1) / (m + 1) for b of m random assignments (Phipson and Smyth 2010), never 0.

    Ties are never split by floating-point noise, and the order of the differences is irrelevant:
    the sums are integers. Integers, fractions and whole floats are taken as exact. Other floats are
    rounded numbers, e.g. 0.1 or a logarithm, so their sums are compared with a tolerance of 2^-40
    of the sum of magnitudes. Its proof: if every difference carries a relative error of at most
    2^-42, two assignments with truly equal sums differ by at most 2^-41 of the sum of magnitudes,
    and the conversion to integers adds less than 2 n units of 2^-52. A wrongly assumed tie raises
    p. NumPy numbers of any width are read exactly; floats shorter than 64 bits are rounded more
    coarsely, and the tolerance grows by the same factor.

    Args:
        rng: for the random assignments; None uses a generator with a fixed seed.

    Raises:
        ValueError: there is no difference, or one is not a finite number.
    """
    magnitudes, tolerance = _integers(differences)
    n = magnitudes.size
    least = abs(_signed_total(differences, magnitudes)) - tolerance
    if n <= max_exact:
        extreme, assignments = _count_all(magnitudes, least), 2**n
    else:
        rng = rng if rng is not None else np.random.default_rng(0)
        extreme = _count_random(magnitudes, least, resamples, rng) + 1
        assignments = resamples + 1
    return SignFlip(
        p_value=extreme / assignments,
        n=n,
        method="exact" if n <= max_exact else "Monte Carlo",
        num_extreme=extreme,
        num_assignments=assignments,
    )


def _integers(
    differences: Sequence[float | Fraction] | NDArray[np.number[Any]],
) -> tuple[Any, int]:
    """Magnitudes as integers in a common unit, and the largest difference between equal sums."""
    values = [_exactly(index, value) for index, value in enumerate(differences)]
    if not values:
        raise ValueError("a sign-flip test needs at least one difference")
    if any(isinstance(value, float) and not value.is_integer() for value in values):
        largest = Fraction(max(map(abs, values)))
        shares = [float(Fraction(abs(value)) / largest) for value in values]
        scale = _UNITS / math.fsum(shares)
        units = [round(share * scale) for share in shares]
        return np.array(units, dtype=np.int64), _TIE_UNITS * _coarseness(differences)
    exact = [Fraction(value) for value in values]
    unit = math.lcm(*(value.denominator for value in exact))
    units = [int(abs(value) * unit) for value in exact]
    small = sum(units).bit_length() < _INT64_BITS
    return np.array(units, dtype=np.int64 if small else object), 0


def _exactly(index: int, value: Any) -> Any:
    """The number as a Python number: negating NumPy's int8 -128 would give -128 again."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"difference {index} must be a number, got {value!r}")
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if not math.isfinite(value):
        raise ValueError(f"difference {index} must be finite, got {value}")
    return float(value)


def _coarseness(differences: Any) -> int:
    """Rounding unit of the shortest float, as a multiple of that of a 64-bit float."""
    shorter = {type(value) for value in differences if isinstance(value, np.float16 | np.float32)}
    steps = [float(np.finfo(kind).eps) for kind in shorter]
    return int(max(steps, default=2.0**-52) * _UNITS)


def _signed_total(differences: Any, magnitudes: Any) -> int:
    return int(
        sum(
            -units if value < 0 else units
            for value, units in zip(differences, magnitudes.tolist(), strict=True)
        )
    )


def _count_all(magnitudes: Any, least: int) -> int:
    """Assignments with |sum| >= least, by meeting in the middle.

    The magnitudes are split in two halves. Every signed sum is a sum of one half plus a sum of the
    other, so for each sum a of the first, the sorted sums b of the second with a + b >= least, and
    with a + b <= -least, are two stretches found by bisection.
    """
    if least <= 0:
        return int(2**magnitudes.size)
    half = magnitudes.size // 2
    one = _signed_sums(magnitudes[:half])
    other = _signed_sums(magnitudes[half:])
    other.sort()
    # The sums of a half are symmetric around 0: as many lie below -least as above it.
    return 2 * int((other.size - np.searchsorted(other, least - one)).sum())


def _signed_sums(magnitudes: Any) -> Any:
    """All 2^k signed sums of k magnitudes: changing a - to + adds twice its magnitude."""
    sums = np.empty(1 << magnitudes.size, dtype=magnitudes.dtype)
    few = min(magnitudes.size, _FEW)
    width = 1 << few
    sums[:width] = _SIGNS[:width, :few] @ magnitudes[:few] - magnitudes[few:].sum()
    for step in (2 * magnitudes[few:]).tolist():
        np.add(sums[:width], step, out=sums[width : 2 * width])
        width *= 2
    return sums


def _count_random(magnitudes: Any, least: int, resamples: int, rng: np.random.Generator) -> int:
    # Sorted, so that the same differences in another order meet the same signs.
    ordered = np.sort(magnitudes)
    count = 0
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        signs = 2 * rng.integers(0, 2, size=(rows, ordered.size), dtype=np.int64) - 1
        count += int((np.abs(signs @ ordered) >= least).sum())
    return count
