"""What a ledger takes and what it refuses: a name with runs means one thing for ever."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_ledger import PROVENANCE, TOY, toy_requests

from hsexp.ledger import Attempt, Ledger, LedgerError, encode_table
from hsexp.ledger.contract import Contract
from hsexp.ledger.journal import Journal
from hsexp.plan.cells import Cell, Plan, content_key
from hsexp.plan.contract import contract_of, in_words

TABLE = encode_table(toy_requests())
SIZES = {"s2": 512, "d0": 16}


def cell(
    organization: str = "s2",
    *,
    size: int | None = None,
    seed: int = 0,
    block: str = "main",
    text: str = "a device",
    **config: Any,
) -> Cell:
    """A cell whose organization has a block size, with all parts that a contract tells apart."""
    organization_data = {"name": organization, "block_size": size or SIZES[organization]}
    full = {
        "model": {"name": "toy", "layers": 4},
        "organization": organization_data,
        "workload": {"name": "law", "num_requests": 60, "sharing": 1.0},
        "arrivals": {"kind": "poisson", "rate_per_s": 3.0},
        "scheduler": {"token_budget": 2048, "separate": False},
        "device": {"name": "toy", "description": text, "source": text},
        "seed": seed,
        **config,
    }
    axes = {"organization": organization, "sharing": 1.0, "rate_per_s": 3.0, "seed": seed}
    return Cell(
        campaign="toy",
        block=block,
        axes=axes,
        config=full,
        cell_id=content_key(full),
        pair_id=content_key(seed),
    )


def contract(*cells: Cell) -> dict[str, Any]:
    return contract_of("toy", cells)


def opened(path: Path, *cells: Cell) -> Ledger:
    return Ledger.open(path, contract=contract(*cells))


def record(ledger: Ledger, cell: Cell, *, ok: bool = True) -> None:
    attempt = Attempt(
        cell=cell,
        status="ok" if ok else "failed",
        reason=None if ok else "ValueError: unlucky",
        workload_digest="0",
        engine=TOY,
        provenance=PROVENANCE,
        started_at="2026-01-01T00:00:00.000+00:00",
        wall_s=0.5,
    )
    ledger.record(attempt, requests=TABLE if ok else None)


def kinds(path: Path) -> list[str]:
    return [event["kind"] for event in Journal(path / "journal.jsonl").read_new()]


# -- one process -----------------------------------------------------------------------------------


def test_a_contract_has_what_its_cells_share_and_the_names_that_they_use() -> None:
    assert contract(cell("s2"), cell("d0", block="other")) == {
        "campaign": "toy",
        "model": {"name": "toy", "layers": 4},
        "device": {"name": "toy"},
        "scheduler": {"token_budget": 2048},
        "options": {
            "organization": {
                "s2": {"name": "s2", "block_size": 512},
                "d0": {"name": "d0", "block_size": 16},
            }
        },
        "blocks": {
            block: {
                "workload": {"name": "law", "num_requests": 60},
                "arrivals": {"kind": "poisson"},
                "separate": False,
                "exact": False,
            }
            for block in ("main", "other")
        },
        "words": {"device": {"description": "a device", "source": "a device"}},
    }


def test_a_new_name_is_an_addition_that_the_journal_keeps(tmp_path: Path) -> None:
    record(opened(tmp_path, cell("s2")), cell("s2"))
    opened(tmp_path, cell("d0"))
    assert kinds(tmp_path) == ["header", "attempt", "adopt", "extend"]
    assert Ledger.read(tmp_path).contract == Contract.of(contract(cell("s2"), cell("d0"))).to_data()


def test_a_ledger_that_knows_every_name_is_left_as_it_is(tmp_path: Path) -> None:
    opened(tmp_path, cell("s2"), cell("d0"))
    before = (tmp_path / "journal.jsonl").read_bytes()
    opened(tmp_path, cell("d0"))
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_another_meaning_of_a_name_with_runs_is_refused_by_its_fields(tmp_path: Path) -> None:
    record(opened(tmp_path, cell("s2")), cell("s2"))
    before = (tmp_path / "journal.jsonl").read_bytes()
    with pytest.raises(LedgerError) as refused:
        opened(tmp_path, cell("s2", size=256, max_depth=1))
    assert str(refused.value).splitlines() == [
        f"{tmp_path} holds runs of another configuration:",
        "  max_depth: ledger has nothing, this run has 1",
        "  organization.s2.block_size: ledger has 512, this run has 256",
    ]
    assert (tmp_path / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("runs", ["none", "failed"])
def test_a_name_without_runs_may_change(tmp_path: Path, runs: str) -> None:
    ledger = opened(tmp_path, cell("s2"), cell("d0"))
    record(ledger, cell("d0"))
    if runs == "failed":
        record(ledger, cell("s2"), ok=False)
    record(opened(tmp_path, cell("s2", size=256)), cell("s2", size=256))
    options = Ledger.read(tmp_path).contract["options"]
    assert options["organization"]["s2"]["block_size"] == 256
    with pytest.raises(LedgerError, match=r"s2\.block_size: ledger has 256, this run has 512"):
        opened(tmp_path, cell("s2"))


def test_a_field_of_one_organization_concerns_its_cells_alone(tmp_path: Path) -> None:
    record(opened(tmp_path, cell("d0")), cell("d0"))
    record(opened(tmp_path, cell("s2", size=256)), cell("s2", size=256))
    opened(tmp_path, cell("d0"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"workload": {"name": "law", "num_requests": 20, "sharing": 1.0}},
            r"blocks\.main\.workload\.num_requests: ledger has 60, this run has 20",
        ),
        ({"exact": True}, r"blocks\.main\.exact: ledger has false, this run has true"),
        (
            {"scheduler": {"token_budget": 2048, "separate": True}},
            r"blocks\.main\.separate: ledger has false, this run has true",
        ),
        (
            {"scheduler": {"token_budget": 1024, "separate": False}},
            r"scheduler\.token_budget: ledger has 2048, this run has 1024",
        ),
    ],
)
def test_another_law_of_a_block_with_runs_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    record(opened(tmp_path, cell()), cell())
    with pytest.raises(LedgerError, match=message):
        opened(tmp_path, cell(**changed))
    if "scheduler" not in message:
        opened(tmp_path, cell(block="other", **changed))


def test_arrivals_that_a_block_takes_from_a_trace_leave_a_law_to_later_cells(
    tmp_path: Path,
) -> None:
    replayed = cell(arrivals=None)
    assert "arrivals" not in contract(replayed)["blocks"]["main"]
    record(opened(tmp_path, replayed), replayed)
    opened(tmp_path, cell())


def test_whole_numbers_are_equal_however_they_are_spelled(tmp_path: Path) -> None:
    record(opened(tmp_path, cell(rate=3.0)), cell(rate=3.0))
    opened(tmp_path, cell(rate=3))
    with pytest.raises(LedgerError, match="rate: ledger has 3, this run has true"):
        opened(tmp_path, cell(rate=True))


def test_free_text_is_not_compared_and_the_ledger_s_own_names_the_cells(tmp_path: Path) -> None:
    record(opened(tmp_path, cell()), cell())
    edited = cell(text="the same device in other words")
    ledger = opened(tmp_path, edited)
    assert edited.cell_id not in ledger.accepted()
    plan = Plan(campaign="toy", cells=(edited,), contract=contract(edited), notes=())
    (known,) = in_words(plan, ledger.contract["words"]).cells
    assert known == cell()


def test_a_setting_that_has_become_another_cell_is_refused(tmp_path: Path) -> None:
    """What a contract cannot tell: names that an older ledger's contract lacks."""
    ledger = opened(tmp_path, cell())
    record(ledger, cell())
    ledger.require_cells([cell(), cell(seed=1), cell(block="other", size=256)])
    with pytest.raises(LedgerError, match=r"block main, organization=s2 .*: ledger has cell "):
        ledger.require_cells([cell(size=256)])


def test_an_option_that_two_axes_decide_is_named_by_both() -> None:
    two = Contract.of({"options": {"organization/dtype": {"s2/float32": 1, "s2/bfloat16": 2}}})
    row = {"block": "checks", "axes": {"organization": "s2", "dtype": "float32"}}
    assert two.terms_of(row) == {("options", "organization/dtype", "s2/float32")}


# -- several processes -----------------------------------------------------------------------------


def test_a_run_under_a_meaning_that_another_process_has_changed_is_refused(tmp_path: Path) -> None:
    """Both may declare s2 before it has runs; the last declaration counts, and only it."""
    ours, theirs = opened(tmp_path, cell("s2")), opened(tmp_path, cell("s2", size=256))
    with pytest.raises(LedgerError, match=r"s2\.block_size: ledger has 256, this run has 512"):
        record(ours, cell("s2"))
    record(theirs, cell("s2", size=256))
    assert len(Ledger.read(tmp_path).attempts()) == 1


def test_an_addition_by_another_process_leaves_our_runs_alone(tmp_path: Path) -> None:
    ours = opened(tmp_path, cell("s2"))
    record(opened(tmp_path, cell("d0")), cell("d0"))
    record(ours, cell("s2"))
    assert len(ours.accepted()) == 2


EXTEND = """
import sys
from test_contract import cell, opened, record
path, size, seeds = sys.argv[1], int(sys.argv[2]), range(int(sys.argv[3]))
from hsexp.ledger import LedgerError
try:
    ledger = opened(path, cell("d0"), cell("s2", size=size))
    for seed in seeds:
        record(ledger, cell("s2", size=size, seed=seed))
except LedgerError as error:
    print("refused")
"""


def test_of_two_processes_that_extend_a_ledger_at_once_one_gives_the_meaning(
    tmp_path: Path,
) -> None:
    opened(tmp_path, cell("d0"))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", EXTEND, str(tmp_path), str(size), "5"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        for size in (256, 128, 64)
    ]
    said = [process.communicate()[0] for process in processes]
    assert sorted(said) == ["", "refused\n", "refused\n"]
    ledger = Ledger.read(tmp_path)
    size = ledger.contract["options"]["organization"]["s2"]["block_size"]
    expected = {cell("s2", size=size, seed=seed).cell_id for seed in range(5)}
    assert ledger.accepted().keys() == expected


# -- ledgers from before ---------------------------------------------------------------------------

OLD: dict[str, Any] = {
    "campaign": "toy",
    "engine": "sim",
    "model": {"name": "toy", "layers": 4},
    "device": {"name": "toy", "description": "words", "source": "more words"},
    "scheduler": {"token_budget": 2048, "separate": False},
    "separate": {"apart": True},
    "workload": {"launch": {"name": "law", "num_requests": 60}},
    "arrivals": {"launch": {"kind": "poisson"}, "burst": {"kind": "burst"}},
    "organization": {"s2": {"name": "s2", "block_size": 512}, "d0": {"name": "d0"}},
    "retention": {"off": {"name": "off"}, "k2": {"name": "k2"}},
    "pinning": {"off": {"name": "off"}},
    "isolation": {"share": {"name": "share"}},
}


def old_ledger(path: Path, *cells: Cell, **changed: Any) -> None:
    """As it was written when a contract named every option."""
    journal = Journal(path / "journal.jsonl")
    (path / "requests").mkdir(parents=True)
    with journal.exclusive():
        journal.append([{"kind": "header", "schema": 1, "contract": OLD | changed}])
    ledger = Ledger.open(path)
    for each in cells:
        record(ledger, each)


def old_cell(block: str = "main") -> Cell:
    made = cell(block=block)
    axes = {**made.axes, "retention": "off", "pinning": "off", "isolation": "share"}
    return Cell(**{**vars(made), "axes": axes})


def test_the_contract_of_an_older_ledger_is_what_its_runs_use(tmp_path: Path) -> None:
    old_ledger(tmp_path, old_cell(), old_cell(block="apart"))
    contract = Ledger.read(tmp_path).contract
    laws = {"workload": {"name": "law", "num_requests": 60}, "exact": False}
    assert contract == {
        "campaign": "toy",
        "engine": "sim",
        "model": {"name": "toy", "layers": 4},
        "device": {"name": "toy"},
        "scheduler": {"token_budget": 2048},
        "options": {
            "organization": {"s2": {"name": "s2", "block_size": 512}},
            "retention": {"off": {"name": "off"}},
            "pinning": {"off": {"name": "off"}},
            "isolation": {"share": {"name": "share"}},
        },
        # Which of two laws of arrivals a block draws from, no row tells.
        "blocks": {"main": laws | {"separate": False}, "apart": laws | {"separate": True}},
        "words": {"device": {"description": "words", "source": "more words"}},
    }


def test_an_older_ledger_takes_new_names_and_refuses_other_meanings(tmp_path: Path) -> None:
    old_ledger(tmp_path, old_cell())
    before = Ledger.read(tmp_path).contract
    s2 = before["options"]["organization"]["s2"]
    before["options"]["organization"] = {"s3": {"name": "s3"}, "d0": {"name": "d0", "new": 1}}
    assert Ledger.open(tmp_path, contract=before).contract["options"]["organization"] == {
        "s2": s2,
        **before["options"]["organization"],
    }
    before["options"]["organization"] = {"s2": s2 | {"block_size": 16}}
    with pytest.raises(LedgerError, match=r"organization\.s2\.block_size: ledger has 512"):
        Ledger.open(tmp_path, contract=before)


def test_an_older_ledger_without_runs_has_what_all_its_cells_share(tmp_path: Path) -> None:
    old_ledger(tmp_path)
    contract = Ledger.read(tmp_path).contract
    assert not {"options", "blocks"} & contract.keys()
    with pytest.raises(LedgerError, match='engine: ledger has "sim", this run has nothing'):
        opened(tmp_path, cell())
