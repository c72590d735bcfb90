"""Imported first by our programs: until `end_well` takes over, Ctrl-C ends the process silently.

`python -m PROGRAM` imports for a second before it runs, and has nothing to lose until then.
Nothing changes where another program imports one of ours.
"""

import signal
import sys

from hsexp.verbs import VERBS

PROGRAMS = ("hsexp", *(verb.module for verb in VERBS.values()))

_words = sys.orig_argv
_program = _words[_words.index("-m") + 1] if "-m" in _words[:-1] else None
_is_first = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""`end_well` does not run yet."""
_has_traceback = signal.getsignal(signal.SIGINT) is signal.default_int_handler

if _program in PROGRAMS and _is_first and _has_traceback:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
