"""The organizations; `create` is the only place that chooses one."""

from typing import Annotated

from pydantic import Field

from hsexp.memory.geometry import ModelShape, StateGeometry
from hsexp.memory.organizations.base import Organization, PoolPlan, StateMix, StatePlaces
from hsexp.memory.organizations.d0 import D0, D0Config
from hsexp.memory.organizations.s0 import S0, S0Config
from hsexp.memory.organizations.s1 import S1, S1Config
from hsexp.memory.organizations.s2 import S2, S2Config
from hsexp.memory.organizations.s3 import S3, S3Config

OrganizationConfig = Annotated[
    S0Config | S1Config | S2Config | S3Config | D0Config, Field(discriminator="kind")
]


__all__ = [
    "D0",
    "S0",
    "S1",
    "S2",
    "S3",
    "Organization",
    "PoolPlan",
    "StateMix",
    "StatePlaces",
    "create",
]


def create(config: OrganizationConfig, model: ModelShape) -> Organization:
    """The organization that a configuration names, sized for a model.

    Raises:
        ValueError: the sizes do not fit together.
    """
    geometry = StateGeometry.of(model)
    config = config.fitted(model)
    match config:
        case S0Config():
            return S0(config, geometry)
        case S1Config():
            return S1(config, geometry)
        case S2Config():
            return S2(config, geometry)
        case S3Config():
            return S3(config, geometry)
        case D0Config():
            fraction = config.attention_fraction or model.d0_attention_fraction
            assert fraction is not None, "the settings are fitted to the model"
            return D0(config, geometry, attention_fraction=fraction)
