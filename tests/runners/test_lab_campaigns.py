"""Campaigns without an engine as a user types them: what they print, write and draw."""

from pathlib import Path

import pytest
from small_launches import SMALL, carried_out

import analysis.__main__
from analysis.config import listing
from analysis.ledgers import Ledgers
from hsexp.config.base import ConfigError
from hsexp.ledger import Ledger

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


# -- the same tables as the analysis ---------------------------------------------------------------

FILES = {
    "capacity": {"A-1.csv", "B-3.tex", "state-units.md", "figure-1.pdf"},
    "fixed_work": {"fixed-work-width.csv", "fixed-work-mixing.md"},
    "cachelab": {"cachelab.csv"},
}


@pytest.mark.parametrize("campaign", FILES)
def test_a_counted_campaign_writes_what_the_analysis_writes_and_draws_its_figures(
    campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, printed = carried_out(f"campaign={campaign}", analyse=True)
    assert result.exit_code == 0
    folder = Path("ledgers/analysis")
    assert FILES[campaign] <= {path.name for path in folder.iterdir()}
    assert f"written: {folder / next(iter(listing(campaign).tables))}.csv" in printed
    analysis.__main__.main([f"campaign={campaign}", "out=other"])
    for path in Path("other").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()


@pytest.mark.parametrize("campaign", [*FILES, "branching", "speculation"])
def test_a_plan_of_a_counted_campaign_counts_nothing(
    campaign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(name: str, ledgers: Ledgers) -> None:
        raise AssertionError(f"table {name} was made")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(analysis.__main__, "make", counted)
    result, printed = carried_out(f"campaign={campaign}", "stage=plan", analyse=True)
    assert result.exit_code == 0
    for table in listing(campaign).tables:
        assert f"Table {table}" in printed
    assert not any(tmp_path.iterdir())


def test_capacity_counts_with_the_block_that_the_command_line_gives() -> None:
    changed = ("campaign=capacity", "organization=s2", "organization.block_size=256")
    _, printed = carried_out(*changed, "stage=run")
    units = printed[printed.index("state-units") : printed.index("A-1")]
    assert "s2 256 512 262,144 1,835,008" in " ".join(units.split())  # 6 members and a slab
    assert "The paper prints no values for these settings." in printed
    assert "verdict" not in printed
    assert "B-3: there is no D0 among the organizations" in printed


def test_capacity_of_granite_counts_all_four_organizations() -> None:
    _, printed = carried_out("campaign=capacity", "model=granite_4_h", "stage=run")
    for organization in ("s0", "s1", "s2", "d0"):
        assert f" b63 101,154,816 {organization} " in " ".join(printed.split())


def test_mixes_that_fit_no_slab_are_refused_before_anything_is_printed() -> None:
    mixes = "campaign.mixes=[{attention_tokens: 0, checkpoints: 17, slabs: 1}]"
    with pytest.raises(ConfigError, match=r"campaign.mixes: 1 slabs cannot hold 17 convolution"):
        carried_out("campaign=capacity", mixes)


def test_speculation_runs_with_granite() -> None:
    result, printed = carried_out(
        "campaign=speculation", "model=granite_4_h", "stage=run", *FAST["speculation"]
    )
    assert result.exit_code == 0
    assert "Drafts of known acceptance in s2." in printed
    assert "budget" not in printed


def test_branching_of_granite_leaves_out_what_the_budget_cannot_hold_and_says_so() -> None:
    result, printed = carried_out(
        "campaign=branching",
        "model=granite_4_h",
        "stage=run",
        "campaign.branches=[2]",
        "campaign.beam_widths=[8]",
    )
    assert result.exit_code == 0
    samples, beams = printed.split("branching-beams")
    assert " s2 copy " in " ".join(samples.split())
    assert "Left out" not in samples
    assert "Left out: budget b320 is too small: d0: no room to copy" in beams


def test_a_campaign_of_the_same_kind_under_another_name_is_counted_itself() -> None:
    _, printed = carried_out(
        "campaign=cachelab", "campaign.name=mine", "campaign.capacities=[5]", "stage=run"
    )
    assert "mine: The cyclic working set" in printed
    rows = [line.split() for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert {row[0] for row in rows} == {"5"}


def test_a_collection_has_members_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = "campaign.campaigns=[q9,cachelab]"
    small = [*SMALL, "budget=b83", "retention=off", "isolation=share"]
    result, printed = carried_out("campaign=paper", members, "ledger=mine", *small)
    assert result.exit_code == 0
    assert "cachelab has no use for seeds" in printed
    assert "cachelab  A cyclic working set" in printed
    assert len(Ledger.read("mine/q9/sim").attempts()) == 1


def test_the_files_of_a_collection_s_counted_members_lie_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = ("campaign.campaigns=[cachelab]", "campaign.compare=null")
    carried_out("campaign=paper", *members, "ledger=mine", analyse=True)
    assert sorted(path.name for path in Path("mine/analysis").iterdir()) == [
        "cachelab.csv",
        "cachelab.md",
        "cachelab.tex",
    ]


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (
            ("campaign.campaigns=[cachelab,capacity]", "seeds=[7]"),
            "seeds means nothing to any member of campaign paper, got ",
        ),
        (("campaign.campaigns=[q9,paper]",), "must not name a collection, got paper"),
        (
            ("campaign.campaigns=[q99]",),
            "campaign 'q99' does not exist; choose from advise, branching, ",
        ),
    ],
)
def test_a_collection_is_refused_before_its_first_member(
    overrides: tuple[str, ...], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        carried_out("campaign=paper", *overrides)
