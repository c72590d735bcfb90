"""The clock of a step-time model: the one place that tells their kinds apart."""

from hsexp.config.device import StepTimeModel
from hsexp.config.roofline import RooflineStepTime
from hsexp.sim.roofline import RooflineClock
from hsexp.sim.steptime import StepClock, StepTimes


def clock_of(model: StepTimeModel | RooflineStepTime, *, paged: bool = False) -> StepTimes:
    """
    Args:
        paged: recurrent kernels read states page by page. A data sheet does not say what that adds.
    """
    if isinstance(model, RooflineStepTime):
        return RooflineClock.of(model)
    return StepClock.of(model, paged=paged)
