"""python -m hsexp campaign=q6 [axis=value ...] [-m]"""

import os
import sys

from runners.command import main

if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough: `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
