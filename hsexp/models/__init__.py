"""Models from Hugging Face's config.json: the sizes of their states, without their weights."""

from hsexp.models.reading import is_config, read_model

__all__ = ["is_config", "read_model"]
