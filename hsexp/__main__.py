"""python -m hsexp campaign=q6 [axis=value ...] [-m]"""

import sys

from runners.command import main

if __name__ == "__main__":
    sys.exit(main())
