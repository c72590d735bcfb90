"""The plans of every campaign on both engines, and of launches that change one, as digests."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from frozen_form import digest_of_data, digest_of_text
from frozen_project import ConfigError, Engine, campaigns, composed_data, planned, printed_plan

_MINI = ("device=cpu", "model=falcon_h1_mini")
"""Device and model that have a scale of their own."""

_CALIBRATED = (
    "device=cpu_falcon_h1_mini_q9",
    "model=falcon_h1_mini",
    "scale=cpu_falcon_h1_mini",
)

_ONE_SEED = "seeds=[76400]"

VARIATIONS: tuple[tuple[str, ...], ...] = (
    # One axis of the campaign is narrowed, or gets a value that the campaign does not plan.
    ("campaign=q6", "budget=b63"),
    ("campaign=q6", _ONE_SEED, "budget=b320"),
    ("campaign=q6", _ONE_SEED, "budget=bytes", "budget.bytes=200000000"),
    ("campaign=q6", "admission.headroom=0.19"),
    ("campaign=q6", _ONE_SEED, "admission.headroom=0.5"),
    ("campaign=q6", "admission.headroom=1.2"),
    ("campaign=q6", "admission.cap=0"),
    ("campaign=q6", "seeds=[1,2]"),
    ("campaign=q6", "seeds=[76400,76403]"),
    ("campaign=q6", _ONE_SEED, "organization=s1"),
    ("campaign=q6", "organization=s2"),
    ("campaign=q6", _ONE_SEED, "admission.cap=10"),
    ("campaign=q6", _ONE_SEED, "retention=k2"),
    ("campaign=q6", _ONE_SEED, "pinning=k3"),
    ("campaign=q6", _ONE_SEED, "isolation=isolate"),
    ("campaign=q6", _ONE_SEED, "arrivals.rate_per_s=1.5"),
    ("campaign=q6", _ONE_SEED, "workload.sharing=0.5"),
    ("campaign=q6", _ONE_SEED, "trace=true"),
    ("campaign=q7", "trace=false"),
    # Several axes, and several blocks that have different values.
    ("campaign=q6", "budget=b63", "admission.headroom=0.19", "organization=s2", "seeds=[7]"),
    ("campaign=q1", "admission.cap=109"),
    ("campaign=q1", "budget=b83"),
    ("campaign=q1", "seeds=[0]"),
    ("campaign=q5", "arrivals.rate_per_s=3.0", "budget=b108"),
    ("campaign=bursts", "arrivals.rate_per_s=2.0"),
    ("campaign=cap_ladder", "admission.cap=8"),
    ("campaign=live_separation", "admission.headroom=0.19"),
    ("campaign=exact_cost", "workload.sharing=0.0", "seeds=[42000]"),
    # What all cells share.
    ("campaign=q6", _ONE_SEED, "organization=s2", "organization.block_size=256"),
    ("campaign=q6", _ONE_SEED, "organization=d0", "organization.attention_fraction=0.45"),
    ("campaign=q6", _ONE_SEED, "model=granite_4_h"),
    ("campaign=q6", _ONE_SEED, "model.max_model_tokens=4096"),
    ("campaign=q6", _ONE_SEED, "scheduler.token_budget=1024"),
    ("campaign=q6", _ONE_SEED, "scheduler.separate=true"),
    ("campaign=q6", _ONE_SEED, "engine.exact=true"),
    ("campaign=q6", _ONE_SEED, "workload=original"),
    ("campaign=q6", _ONE_SEED, "workload.num_requests=60"),
    ("campaign=q6", _ONE_SEED, "arrivals=burst"),
    # Another size of the campaign.
    ("campaign=q1", *_MINI),
    ("campaign=q6", *_MINI),
    ("campaign=q9", *_MINI),
    ("campaign=q2", *_MINI),
    ("campaign=q2", *_MINI, "~scale"),
    ("campaign=q1", *_MINI, "budget=b63"),
    ("campaign=q1", *_MINI, "organization=s2", "seeds=[7]"),
    ("campaign=q1", *_MINI, "organization=s2", "organization.slot_bytes=16384"),
    ("campaign=q1", *_MINI, "budget=bytes", "budget.bytes=200000000"),
    ("campaign=q1", *_MINI, "workload.num_requests=20"),
    ("campaign=q9", *_CALIBRATED),
    # Other workloads, and plans that are not of serving runs.
    ("campaign=trace", "workload.format=lengths", "workload.max_requests=2"),
    ("campaign=trace", "arrivals.rate_per_s=2.0"),
    ("campaign=trace", "workload.keep_arrivals=false", "arrivals.rate_per_s=2.0", "seeds=[0,1]"),
    ("campaign=trace", "seeds=[0,1]"),
    ("campaign=trace", "budget=bytes", "budget.bytes=12000000", "organization=s2"),
    ("campaign=continuation", "organization=d0"),
    ("campaign=continuation", "organization=s2", "seeds=[7]"),
    ("campaign=continuation", "device=a100_40gb"),
    ("campaign=continuation", "device=cpu_falcon_h1_mini_q1"),
)

FILE = "plans.json"

TRACE = "lengths.csv"
TRACE_TEXT = """arrival_s,input_tokens,output_tokens
0.0,3000,200
0.1,5000,400
0.2,1200,600
0.2,6000,30
1.5,2500,900
"""
"""The request trace of the campaigns that serve one. Its place changes no golden value."""

_NEEDED = {"campaign=trace": (), "campaign=advise": ("budget=b320",)}
"""What campaigns that serve a trace need beside it."""


def launches() -> dict[str, tuple[str, ...]]:
    """Overrides by name: each campaign as it stands, then the variations."""
    whole = [(f"campaign={name}",) for name in campaigns()]
    return {" ".join(overrides): overrides for overrides in (*whole, *VARIATIONS)}


def frozen_plans(overrides: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The golden entries of a launch by engine, or one by "none" for a campaign without cells."""
    if overrides[0] not in _NEEDED:
        return _frozen_plans(overrides, whole=len(overrides) == 1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / TRACE
        path.write_text(TRACE_TEXT, encoding="utf-8")
        needed = (*_NEEDED[overrides[0]], f"workload.path={path}")
        entries = _frozen_plans((*overrides, *needed), whole=len(overrides) == 1)
    for entry in entries.values():
        if "refused" in entry:
            entry["refused"] = entry["refused"].replace(str(path), TRACE)
    return entries


def _frozen_plans(overrides: tuple[str, ...], *, whole: bool) -> dict[str, dict[str, Any]]:
    data = composed_data(*overrides, "engine=sim")
    match data["campaign"]["kind"]:
        case "serving":
            engines: tuple[Engine, ...] = get_args(Engine)
        case "continuation":
            engines = ("vllm",)
        case "collection":
            return {"none": {"expected_to_change": True, "members": data["campaign"]["campaigns"]}}
        case "engine":
            return {"none": _without_cells((*overrides, "engine=sim"))}
        case _:
            return {"none": _without_cells(overrides)}
    of_engine = {"sim": data["engine"], "vllm": _vllm()}
    return {
        engine: _frozen(data | {"engine": of_engine[engine]}, engine, whole=whole)
        for engine in engines
    }


def _frozen(data: dict[str, Any], engine: Engine, *, whole: bool) -> dict[str, Any]:
    """A plan, or why there is none.

    `contract` and what comes after it are apart from the cells: they may change on purpose.
    """
    try:
        plan = planned(data, engine)
    except ConfigError as error:
        return {"refused": str(error)}
    cells = plan.cells
    entry = {
        "num_cells": len(cells),
        "first_cell": cells[0].cell_id,
        "last_cell": cells[-1].cell_id,
        "cell_ids": digest_of_text("\n".join(cell.cell_id for cell in cells)),
        "pair_ids": digest_of_text("\n".join(cell.pair_id for cell in cells)),
        "axes": digest_of_data([[cell.campaign, cell.block, cell.axes] for cell in cells]),
        "axis_order": " ".join(cells[0].axes),
        "notes": list(plan.notes),
        "registration": digest_of_data(plan.registration),
        "contract": digest_of_data(plan.contract),
    }
    if whole:
        entry["contract_fields"] = {
            field: digest_of_data(value)[:8] for field, value in sorted(plan.contract.items())
        }
    return entry | {"plan": plan.digest}


@cache
def _vllm() -> dict[str, Any]:
    engine: dict[str, Any] = composed_data("engine=vllm")["engine"]
    return engine


def _without_cells(overrides: tuple[str, ...]) -> dict[str, Any]:
    """What such a campaign prints, which is expected to change."""
    try:
        exit_code, text = printed_plan(*overrides)
    except ConfigError as error:
        return {"expected_to_change": True, "refused": str(error)}
    return {"expected_to_change": True, "exit_code": exit_code, "printed": digest_of_text(text)}
