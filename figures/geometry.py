"""The configured organizations, sized for one model, for drawings of their sizes."""

from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig
from hsexp.memory.organizations import Organization, OrganizationConfig, create

MODEL = "falcon_h1_7b"


def configured(name: str) -> Organization:
    """An organization of conf/organization, sized for the model."""
    config = parse_union(OrganizationConfig, read_option("organization", name), path=name)
    return create(config, ModelConfig.parse(read_option("model", MODEL)))
