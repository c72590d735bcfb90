"""hsexp: memory organizations for serving hybrid attention + SSM language models."""

__version__ = "0.1.0"
