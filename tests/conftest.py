"""Every process that a test starts imports this checkout, whatever is installed."""

import os

from commands import environment

os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
