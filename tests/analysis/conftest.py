"""Q6 on the published seeds, as if it had been run."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from q6_frames import q6_attempts

from analysis.config import load
from analysis.families import AnalysisConfig
from analysis.runs import Runs

sys.path.append(str(Path(__file__).parents[1] / "sim"))  # toy engines, for their traces


@pytest.fixture
def q6() -> AnalysisConfig:
    return load("q6")


@pytest.fixture
def attempts() -> pd.DataFrame:
    """All 360 runs."""
    return q6_attempts(range(76400, 76412))


@pytest.fixture
def runs(attempts: pd.DataFrame, q6: AnalysisConfig) -> Runs:
    return Runs.select(attempts, campaign="q6", design=q6.design)
