"""`campaign=branching`, `speculation` and `cachelab` as a user types them."""

from pathlib import Path

import pytest
from small_launches import carried_out

from hsexp.config.base import ConfigError

FAST = {
    "branching": ("organization=s2", "campaign.branches=[2]", "campaign.beam_widths=[2]"),
    "speculation": ("campaign.passes=20", "campaign.drafts=[4]"),
    "cachelab": ("campaign.times_s=[0.0]",),
}
LINES = {
    # A full prompt: 7 blocks and a state, counted and by the rule.
    "branching": "copy 2 0 7 1 5,264,384 7 1",
    "speculation": "0.5 4 1.9375",
    "cachelab": "8 2 8 0 16 8 8",
}


@pytest.mark.parametrize("campaign", FAST)
def test_a_lab_prints_what_it_counted_and_writes_nothing(
    campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(f"campaign={campaign}", *FAST[campaign])
    assert result.exit_code == 0
    assert LINES[campaign] in " ".join(printed.split())
    assert "counted on the memory core, nothing is timed" in " ".join(printed.split())
    assert not any(tmp_path.iterdir())


def test_a_lab_under_a_small_budget_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="budget bytes_9000000 is too small: s2: pool shared"):
        carried_out(
            "campaign=branching", *FAST["branching"], "budget=bytes", "budget.bytes=9000000"
        )
    with pytest.raises(ConfigError, match="budget 'b0' does not exist"):
        carried_out("campaign=branching", *FAST["branching"], "campaign.budget=b0")


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("branching 'campaign.branches=[1]'", "campaign.branches.0 must be greater than or equal"),
        ("branching 'campaign.tail_tokens=[-1]'", "campaign.tail_tokens.0 must be greater than"),
        ("speculation 'campaign.acceptances=[1.5]'", "campaign.acceptances.0 must be less than"),
        ("speculation 'campaign.drafts=[]'", "campaign.drafts must not be empty"),
        ("cachelab 'campaign.capacities=[0]'", "campaign.capacities.0 must be greater than 0"),
    ],
)
def test_a_lab_refuses_what_makes_no_sense(setting: str, refused: str) -> None:
    campaign, change = setting.split(" ")
    with pytest.raises(ConfigError, match=refused):
        carried_out(f"campaign={campaign}", change.strip("'"))
