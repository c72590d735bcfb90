"""Laws of lengths in tokens, drawn as they are: nothing is rescaled to a mean."""

from typing import Annotated, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hsexp.config.base import Config


class _Clipped(Config):
    """A law whose draws are clipped to a range and rounded."""

    min_tokens: PositiveInt
    max_tokens: PositiveInt

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens {self.min_tokens} must not exceed max_tokens {self.max_tokens}"
            )
        return self

    def _counted(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint(np.clip(drawn, self.min_tokens, self.max_tokens)).astype(np.int64)


class LognormalTokens(_Clipped):
    """Lengths of text that people write."""

    median_tokens: PositiveFloat
    sigma: Annotated[float, Field(ge=0.0)]
    """Standard deviation of the log length; 0 makes all lengths equal."""

    def draw(self, rng: Generator, size: int | tuple[int, ...]) -> NDArray[np.int64]:
        return self._counted(np.exp(rng.normal(np.log(self.median_tokens), self.sigma, size=size)))


class GammaTokens(_Clipped):
    """Lengths of answers."""

    mean_tokens: PositiveFloat
    """Mean before the clip."""
    shape: PositiveFloat

    def draw(self, rng: Generator, size: int | tuple[int, ...]) -> NDArray[np.int64]:
        return self._counted(
            rng.standard_gamma(self.shape, size=size) * (self.mean_tokens / self.shape)
        )
