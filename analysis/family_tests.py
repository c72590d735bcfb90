"""The tests of a declared family on runs: paired by seed, sign-flipped, and adjusted together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.effects import Pairs, differences, log_ratios, relative_changes
from analysis.families import Adoption, Contrast, Family, Interaction, SignFlipConfig
from analysis.gaps import Gap
from analysis.holm import holm
from analysis.runs import THROUGHPUT, Runs
from analysis.signflip import SignFlip, sign_flip_test

RunsOf = Callable[[Contrast], Runs]


@dataclass(frozen=True, kw_only=True)
class FamilyTest:
    """One test of the family; p is None if its pairs are incomplete."""

    id: str
    arms: str
    place: str
    unit: str
    """% for a contrast, pp for an interaction."""
    definition: str
    n: int
    """Number of seeds that have a ratio and were not excluded."""
    changes: pd.Series | None
    """Seedwise relative changes, in `unit`; None if incomplete or not estimable."""
    looks: tuple[SignFlip, ...]
    """One test per look; one look unless the family declares several."""
    p_value: float | None
    gaps: tuple[Gap, ...]
    excluded: Mapping[int, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Descriptions of the cells that the test lacks."""
        return tuple(map(str, self.gaps))

    @property
    def mean_change(self) -> float | None:
        return None if self.changes is None else float(self.changes.mean())

    @property
    def moved(self) -> bool:
        """Whether the arms differ in any seed. If they never do, as simulated arms may, what sets
        them apart never acted, and p = 1 is no answer."""
        return self.changes is not None and bool((self.changes != 0.0).any())

    @property
    def sign_flip(self) -> SignFlip | None:
        """The test of all seeds; None if it could not be done."""
        return self.looks[-1] if self.looks else None


def family_tests(
    family: Family,
    runs_of: RunsOf,
    *,
    adoption: Adoption = "current",
    sign_flip: SignFlipConfig | None = None,
) -> list[FamilyTest]:
    """Every declared test, in the order of the declaration.

    Args:
        runs_of: the runs of a contrast.
        adoption: how the family's affected runs are treated (Appendix E.14).
        sign_flip: settings of the test; None uses the defaults of `sign_flip_test`.

    Raises:
        AnalysisError: two arms of a seed served different requests.
    """
    paired = {
        contrast.id: _pair(contrast, runs_of(contrast), family)
        for contrast in (*family.contrasts, *family.components)
    }
    tests = [_contrast_test(paired[c.id], family, adoption, sign_flip) for c in family.contrasts]
    return tests + [
        _interaction_test(
            interaction,
            (paired[interaction.minuend], paired[interaction.subtrahend]),
            family,
            adoption,
            sign_flip,
        )
        for interaction in family.interactions
    ]


def component_changes(family: Family, runs_of: RunsOf) -> dict[str, FamilyTest]:
    """Contrasts that only interactions need, by id; they are shown but not tested."""
    return {
        contrast.id: _describe(_pair(contrast, runs_of(contrast), family))
        for contrast in family.components
    }


def adjusted_p(tests: Sequence[FamilyTest]) -> NDArray[np.float64]:
    """Holm over the whole family. NaN stands for a test that could not be done; the others are then
    upper bounds."""
    return holm([np.nan if test.p_value is None else test.p_value for test in tests])


def sequential_p(looks: Sequence[float], num_looks: int) -> float:
    """Eq. B1: min(1, k min p) for k looks; a look that was not taken has p = 1."""
    return min(1.0, num_looks * min(looks))


@dataclass(frozen=True, kw_only=True)
class _Paired:
    """A contrast's arms by seed."""

    contrast: Contrast
    pairs: Pairs
    gaps: tuple[Gap, ...]
    affected: Mapping[int, str]
    """Seeds whose adoption is in doubt, and why."""


def _pair(contrast: Contrast, runs: Runs, family: Family) -> _Paired:
    arms = [arm.at(contrast.at) for arm in (contrast.numerator, contrast.denominator)]
    pairs = runs.pairs(arms[0], arms[1], THROUGHPUT)
    without_run = {seed for arm in arms for seed in runs.missing_seeds(arm)}
    without_value = [
        Gap(cells=f"{contrast.id} seed {seed}", reason=why)
        for seed, why in pairs.undefined.items()
        if seed not in without_run
    ]
    whole = [runs.design.whole(arm).axes for arm in arms]
    affected = {
        run.seed: run.why
        for run in family.affected
        if any(run.arm.axes.items() <= axes.items() for axes in whole)
    }
    return _Paired(
        contrast=contrast,
        pairs=pairs,
        gaps=(*runs.gaps(arms), *without_value),
        affected=affected,
    )


def _contrast_test(
    paired: _Paired, family: Family, adoption: Adoption, settings: SignFlipConfig | None
) -> FamilyTest:
    if adoption == "invalid" and paired.affected:
        return _not_estimable(_describe(paired), paired.affected)
    pairs, gaps = _adopt(paired, paired.affected, adoption)
    changes = None if pairs.undefined else relative_changes(pairs)
    flipped = (
        None
        if changes is None
        else changes
        if family.scale == "relative change"
        else log_ratios(pairs)
    )
    return _with_p(
        _describe(paired, pairs=pairs, changes=changes, gaps=gaps),
        flipped,
        family,
        settings,
    )


def _interaction_test(
    interaction: Interaction,
    parts: tuple[_Paired, _Paired],
    family: Family,
    adoption: Adoption,
    settings: SignFlipConfig | None,
) -> FamilyTest:
    affected = {**parts[0].affected, **parts[1].affected}
    (minuend, gaps), (subtrahend, other_gaps) = (_adopt(part, affected, adoption) for part in parts)
    complete = not (minuend.undefined or subtrahend.undefined)
    # Displayed in percentage points, tested on the family's scale (Appendix B.5).
    points = (
        differences(relative_changes(minuend), relative_changes(subtrahend)) if complete else None
    )
    flipped = (
        None
        if points is None
        else points
        if family.scale == "relative change"
        else differences(log_ratios(minuend), log_ratios(subtrahend))
    )
    test = FamilyTest(
        id=interaction.id,
        arms=f"{interaction.minuend} − {interaction.subtrahend}",
        place="",
        unit="pp",
        definition=interaction.definition,
        n=len(minuend.numerator.index.intersection(subtrahend.numerator.index)),
        changes=points,
        looks=(),
        p_value=None,
        gaps=gaps + other_gaps,
        excluded={**minuend.excluded, **subtrahend.excluded},
    )
    if adoption == "invalid" and affected:
        return _not_estimable(test, affected)
    return _with_p(test, flipped, family, settings)


def _describe(
    paired: _Paired,
    *,
    pairs: Pairs | None = None,
    changes: pd.Series | None = None,
    gaps: tuple[Gap, ...] | None = None,
) -> FamilyTest:
    of = paired.pairs if pairs is None else pairs
    if pairs is None and not of.undefined:
        changes = relative_changes(of)
    return FamilyTest(
        id=paired.contrast.id,
        arms=paired.contrast.label,
        place=paired.contrast.place,
        unit="%",
        definition="published",
        n=len(of.numerator),
        changes=changes,
        looks=(),
        p_value=None,
        gaps=paired.gaps if gaps is None else gaps,
        excluded=of.excluded,
    )


def _adopt(
    paired: _Paired, affected: Mapping[int, str], adoption: Adoption
) -> tuple[Pairs, tuple[Gap, ...]]:
    """The pairs under the scenario; a pair that is left out is not reported as missing."""
    if adoption != "complete_case" or not affected:
        return paired.pairs, paired.gaps
    pairs = paired.pairs.without(affected)
    return pairs, paired.gaps if pairs.undefined else ()


def _not_estimable(test: FamilyTest, affected: Mapping[int, str]) -> FamilyTest:
    return replace(test, changes=None, looks=(), p_value=1.0, gaps=(), excluded=affected)


def _with_p(
    test: FamilyTest, flipped: pd.Series | None, family: Family, settings: SignFlipConfig | None
) -> FamilyTest:
    if flipped is None:
        return test
    ordered = flipped.sort_index()
    sizes = [size for size in family.looks if size <= len(ordered)] or [len(ordered)]
    looks = tuple(_flip(ordered.iloc[:size], settings) for size in sizes)
    p_values = [look.p_value for look in looks]
    p_value = sequential_p(p_values, len(family.looks)) if family.looks else p_values[-1]
    return replace(test, looks=looks, p_value=p_value)


def _flip(values: pd.Series, settings: SignFlipConfig | None) -> SignFlip:
    if settings is None:
        return sign_flip_test(values.to_numpy())
    return sign_flip_test(
        values.to_numpy(),
        max_exact=settings.max_exact,
        resamples=settings.resamples,
        rng=np.random.default_rng(settings.seed),
    )
