"""The command as a shell sees it."""

import subprocess
import sys


def test_a_reader_who_leaves_early_sees_no_traceback() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "hsexp", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1"},
    )
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()  # before a single line
    assert command.stderr.read() == b""
    assert command.wait() == 1
