"""hsexp campaign=q6 [axis=value ...] [-m]
hsexp trace=FILE [workload.SETTING=VALUE ...]
hsexp VERB ARGUMENTS

`hsexp --help` lists the verbs (`hsexp.verbs`), groups and fields.

`python -m hsexp` does the same. It imports from the working directory first, so that a folder
there can take the place of one of our packages; the script `hsexp` does not. `python -m figures`
in a folder that has a package `figures` starts that one, and nothing of ours can object.
"""

import hsexp.starting  # noqa: F401, I001

import os
import runpy
import sys

from hsexp.config.base import ConfigError
from hsexp.core import CoreError
from hsexp.described import names_trace
from hsexp.ending import end_well
from hsexp.shadows import refuse_shadows
from hsexp.verbs import VERBS, listed

_HELP = ("--help", "-h")


def script() -> int:
    """Entry point of the installed script `hsexp`."""
    # Processes that we start take our packages from where this one did, too.
    os.environ["PYTHONSAFEPATH"] = "1"
    return main()


def main() -> int:
    """Run the command line. Returns the exit code."""
    return end_well(_run, ConfigError, CoreError)


def _run() -> int:
    arguments = sys.argv[1:]
    refuse_shadows()
    if arguments and arguments[0] in VERBS:
        del sys.argv[1]
        runpy.run_module(VERBS[arguments[0]].module, run_name="__main__", alter_sys=True)
        return 0  # each ends the process itself, with its own code
    if arguments and arguments[0] in ("-sc", "--shell-completion"):
        from hsexp.completion import main as complete

        return complete(arguments[1:])
    if names_trace(arguments):
        from hsexp.describe import main as describe

        return describe(arguments)
    if any(word in _HELP for word in arguments):
        sys.stdout.write(f"Programs (each has its own --help)\n{listed()}\n\n")
    from runners.command import main as launch

    return launch()


if __name__ == "__main__":
    sys.exit(main())
