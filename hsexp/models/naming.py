"""How a model is named on a command line. It imports little, because every command asks."""

from pathlib import Path


def is_config(text: str) -> bool:
    """Whether this names a model in Hugging Face's format, as a path or an id, and no option."""
    return "/" in text or text.endswith(".json") or Path(text).expanduser().is_dir()
