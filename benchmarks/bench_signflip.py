"""python benchmarks/bench_signflip.py

Times the exact sign-flip test against `scipy.stats.permutation_test` on the same differences, both
enumerating every assignment, and prints the ratios.
"""

import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from scipy.stats import permutation_test

from analysis.signflip import sign_flip_test
from hsexp.console import make_console

COMPARED = (12, 20)
ALONE = (24, 32)
"""SciPy would need minutes and days here."""


def main() -> None:
    table = Table("n", "scipy, ms", "here, ms", "ratio", "same p", title="Exact sign-flip test")
    for n in (*COMPARED, *ALONE):
        differences = np.random.default_rng(n).normal(0.5, 1.0, n)
        here = best_s(partial(sign_flip_test, differences, max_exact=n))
        if n in ALONE:
            table.add_row(str(n), "-", f"{1e3 * here:.3f}", "-", "-")
            continue
        scipy = best_s(partial(enumerate_by_scipy, differences))
        same = np.isclose(sign_flip_test(differences).p_value, enumerate_by_scipy(differences))
        table.add_row(
            str(n),
            f"{1e3 * scipy:.1f}",
            f"{1e3 * here:.3f}",
            f"{scipy / here:,.0f}",
            "yes" if same else "NO",
        )
    make_console().print(table)


def enumerate_by_scipy(differences: NDArray[np.float64]) -> float:
    """Two-sided p by SciPy's enumeration of all sign assignments."""
    result = permutation_test(
        (differences,),
        mean,
        permutation_type="samples",
        n_resamples=2**differences.size,
        vectorized=True,
    )
    return float(result.pvalue)


def mean(x: NDArray[np.float64], axis: int) -> Any:
    return x.mean(axis=axis)


def best_s(call: Callable[[], object]) -> float:
    """Shortest mean duration of a call, seconds: of five rounds of 50 ms, or of one long call."""
    once = timeit.timeit(call, number=1)
    if once > 1.0:
        return once
    number = max(1, int(0.05 / once))
    return min(timeit.repeat(call, number=number, repeat=5)) / number


if __name__ == "__main__":
    main()
