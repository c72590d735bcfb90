"""Weighted non-negative least squares of times on work, and whether the terms can be told apart.

A term that the data does not identify is refused by name: an arbitrary coefficient is worse than
none.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.optimize import nnls

from analysis.errors import AnalysisError

TERMS = ("base_s", "decode_token_s", "prefill_token_s")
"""Coefficients of the step-time model, as in conf/device."""

PAGED = "paged_decode_token_s"
"""One more, where the data holds both kernel paths: what a decode token costs in addition if states
are read page by page."""

CONTEXT = "context_token_s"
"""One more, where traces say what requests had in memory: a token that decoding requests read."""

HIGH_CONDITION = 30.0
"""Belsley, Kuh and Welsch (1980): scaled condition numbers above 30 mean strong collinearity."""


def with_paged(work: pd.DataFrame, paged: pd.Series) -> pd.DataFrame:
    """The work with a term for paged kernels, if some rows ran under them and others did not.

    Args:
        paged: by row; unknown for a run whose organization is not known.
    """
    if paged.isna().any() or paged.nunique() < 2:
        return work
    return work.assign(**{PAGED: work["decode_token_s"].where(paged.astype(bool), 0.0)})


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Coefficients and their precision."""

    coefficients: pd.Series
    """Seconds per unit of work, by term."""
    standard_errors: pd.Series
    """By term; NaN if the sign constraint holds the coefficient at 0. Rows count as independent."""
    fitted: pd.Series
    r_squared: float
    condition_number: float
    """Condition number of the weighted design with columns scaled to unit length."""
    correlation: pd.DataFrame
    """Correlation of the estimated coefficients that are not held at 0."""
    warnings: tuple[str, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        """The fitted coefficients that a device has."""
        return tuple(term for term in (*TERMS, PAGED, CONTEXT) if term in self.coefficients.index)


def fit(times: pd.Series, work: pd.DataFrame, weights: pd.Series) -> Fit:
    """Times as a non-negative combination of the columns of `work`: TERMS, and perhaps PAGED or
    others.

    Raises:
        AnalysisError: there are fewer rows than terms, or a term (named) is not identified.
    """
    root = np.sqrt(weights.to_numpy(dtype=np.float64))
    design = work.to_numpy(dtype=np.float64) * root[:, None]
    scale = np.linalg.norm(design, axis=0)
    _require_identified(work, design, scale)
    scaled, _ = nnls(design / scale, times.to_numpy(dtype=np.float64) * root)
    coefficients = pd.Series(scaled / scale, index=work.columns)
    free = coefficients.index[coefficients > 0.0]
    model = sm.WLS(times, work[free], weights=weights).fit()
    condition = float(np.linalg.cond(design / scale))
    return Fit(
        coefficients=coefficients,
        standard_errors=model.bse.reindex(work.columns),
        fitted=work @ coefficients,
        r_squared=float(model.rsquared),
        condition_number=condition,
        correlation=_correlation(model.cov_params()),
        warnings=tuple(_warnings(coefficients, condition)),
    )


MIN_STANDARD_ERRORS = 2.0
"""A context term that is nearer to 0 than this is left out."""


def fit_with_context(times: pd.Series, work: pd.DataFrame, weights: pd.Series) -> tuple[Fit, str]:
    """The fit with a context term if the data can tell it apart, else the fit without it.

    Args:
        work: with a column CONTEXT.

    Returns the fit, and a sentence on the term.

    Raises:
        AnalysisError: another term is not identified.
    """
    without = fit(times, work.drop(columns=CONTEXT), weights)
    try:
        found = fit(times, work, weights)
    except AnalysisError as error:
        return without, f"There is no term for context length: {error}."
    value, error_s = found.coefficients[CONTEXT], found.standard_errors[CONTEXT]
    if value == 0.0:
        return without, "There is no term for context length: its fit is not positive."
    if value < MIN_STANDARD_ERRORS * error_s:
        return without, (
            "There is no term for context length: the data cannot tell it from 0 "
            f"({1e9 * value:.2f} ns a token, standard error {1e9 * error_s:.2f})."
        )
    return found, (
        f"A token of context takes {1e9 * value:.2f} ns (standard error {1e9 * error_s:.2f}); "
        f"R² is {without.r_squared:.6f} without this term."
    )


def _require_identified(work: pd.DataFrame, design: np.ndarray, scale: np.ndarray) -> None:
    if len(work) < work.shape[1]:
        raise AnalysisError(f"{work.shape[1]} terms need as many rows of steps, got {len(work)}")
    for term, length in zip(work.columns, scale, strict=True):
        if length == 0.0:
            raise AnalysisError(f"{term} is not identified: no row has any of its work")
    for term in TERMS[1:]:
        per_step = work[term] / work[TERMS[0]]
        if (per_step == per_step.iloc[0]).all():
            raise AnalysisError(
                f"{term} is not identified: each step has the same amount of it, so it cannot be "
                "told from base_s"
            )
    _, singular, rows = np.linalg.svd(design / scale, full_matrices=False)
    if singular[-1] < singular[0] * 1e-9:
        involved = [term for term, share in zip(work, np.abs(rows[-1]), strict=True) if share > 0.1]
        raise AnalysisError(
            f"{' and '.join(map(str, involved))} are not identified: their work rises and falls "
            "together in every row"
        )


def _correlation(covariance: pd.DataFrame) -> pd.DataFrame:
    deviations = np.sqrt(np.diag(covariance))
    known = np.where(deviations > 0.0, deviations, np.nan)
    return covariance.div(known, axis=0).div(known, axis=1)


def _warnings(coefficients: pd.Series, condition: float) -> list[str]:
    found = [
        f"{term} is held at 0; the unconstrained fit is negative"
        for term in coefficients.index[coefficients == 0.0]
    ]
    if condition > HIGH_CONDITION:
        found.append(
            f"the terms are hard to tell apart (scaled condition number {condition:.0f} > "
            f"{HIGH_CONDITION:.0f})"
        )
    return found
