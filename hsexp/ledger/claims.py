"""Whether a process holds the lock of a file, asked without keeping anyone out."""

import fcntl
import os
from pathlib import Path


def is_held(path: Path) -> bool:
    """Whether another process holds the lock. A file that cannot be opened is held by nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
