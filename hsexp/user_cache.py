"""The user's cache folder, for files that can be re-created (seeded weights, locks)."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/hsexp, which need not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hsexp"
