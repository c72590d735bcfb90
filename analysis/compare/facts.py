"""Numbers of the paper's design that `conf/` has outside of a campaign's axes, by name.

Sizes are in bytes; `fact` converts them to the unit of a printed cell.
"""

from functools import cache

from scipy.special import stdtrit

from analysis import config as configs
from analysis.config import block_design
from analysis.errors import AnalysisError
from analysis.families import Design
from hsexp.config.campaigns import CapacityCampaign, FixedWorkCampaign
from hsexp.config.catalog import read_option
from hsexp.labs.storage import unit_rows
from hsexp.measure.window import CENTRAL_PERCENT
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import StateGeometry
from hsexp.memory.organizations import D0, S2, Organization, StateMix
from hsexp.plan.resolve import Resolved, memory_for, standing

_PER_UNIT = {"KiB": 1024.0, "MiB": 1024.0**2}


def fact(name: str, unit: str = "") -> float:
    """One fact in the unit of a printed cell.

    Raises:
        AnalysisError: there is no such fact.
    """
    known = every()
    if name not in known:
        raise AnalysisError(f"fact {name} is unknown; there is {', '.join(sorted(known))}")
    return known[name] / (_PER_UNIT.get(unit, 1.0) if name.endswith(" bytes") else 1.0)


@cache
def every() -> dict[str, float]:
    """All facts by name."""
    resolved = standing("capacity")
    layouts = {memory.organization.name: memory.layout for memory in resolved.memories}
    parts = (
        _states(resolved),
        _layouts(resolved, layouts),
        _splits(resolved, layouts["d0"]),
        _laws(),
        _tests(),
        _schedule(),
        _fixed_work(),
    )
    return {name: float(value) for part in parts for name, value in part.items()}


def _states(resolved: Resolved) -> dict[str, float]:
    geometry = StateGeometry.of(resolved.launch.model)
    return {
        "KV of a token bytes": geometry.kv_token_bytes,
        "SSM state bytes": geometry.ssm_bytes,
        "convolution state bytes": geometry.conv_bytes,
        "composite bytes": geometry.composite_bytes,
        "composites of a checkpoint": geometry.composites,
        "recurrent layers": resolved.launch.model.num_recurrent_layers,
        "model length tokens": resolved.launch.model.max_model_tokens,
    }


def _layouts(resolved: Resolved, layouts: dict[str, Organization]) -> dict[str, float]:
    campaign, geometry = resolved.campaign, StateGeometry.of(resolved.launch.model)
    units = {row.organization: row for row in unit_rows(resolved.memories)}
    s2 = layouts["s2"]
    assert isinstance(campaign, CapacityCampaign)
    assert isinstance(s2, S2)
    slot_bytes = s2.slot_bytes
    page, composite = units["s1"].block_bytes, geometry.composite_bytes
    checkpoint = units["s1"].checkpoint_bytes
    kv_block = units["s0"].block_tokens * geometry.kv_token_bytes
    facts: dict[str, float] = {
        "KV of a block bytes": kv_block,
        "unused in an S0 page bytes": units["s0"].block_bytes - kv_block,
        "SSM pages of S1": geometry.ssm_bytes // page,
        "S1 over S0 checkpoint bytes": checkpoint - units["s0"].checkpoint_bytes,
        "slot bytes": slot_bytes,
        "slot less convolution state bytes": slot_bytes - geometry.conv_bytes,
        "slots of a slab": s2.num_slots,
        # The SSM pages of sixteen checkpoints, and the one slab that they share.
        "S2 over D0, sixteen in a slab bytes": 16 * (checkpoint - page - composite) + page,
        "capacity example bytes": campaign.capacity_bytes,
    }
    for name, row in units.items():
        label = name.upper()
        facts |= {
            f"{label} block tokens": row.block_tokens,
            f"{label} grid tokens": row.grid_tokens,
            f"{label} page bytes": row.block_bytes,
            f"{label} checkpoint bytes": row.checkpoint_bytes,
        }
        if name != "d0":
            one_each = StateMix(attention_tokens=row.block_tokens, checkpoints=1)
            capacity = layouts[name].capacity(campaign.capacity_bytes, one_each)
            facts[f"{label} capacity of (1,1)"] = capacity
    for budget in resolved.budgets:
        facts[f"S2 pages of {budget.name}"] = s2.plan(budget.bytes).pools[0].num_pages
    facts["Granite budget bytes"] = read_option("budget", "b160_granite")["bytes"]
    return facts


def _splits(resolved: Resolved, d0: Organization) -> dict[str, float]:
    """D0's attention shares, and what another share does to the bytes of whole units."""
    assert isinstance(d0, D0)
    tokens = -(-d0.geometry.composite_bytes // d0.unit_bytes) * d0.block_size
    facts: dict[str, float] = {
        "tokens of a label unit": tokens,
        "split of D0": float(d0.attention_fraction),
    }
    variants = {}
    for name in ("d0_m10", "d0_m05", "d0_p05", "d0_p10"):
        config = resolved.catalog.option("organization", name)
        variant = memory_for(config, resolved.launch.model).layout
        assert isinstance(variant, D0)
        variants[name] = variant
        facts[f"split of {name}"] = float(variant.attention_fraction)
    for budget in resolved.budgets:
        facts[f"label of {budget.name}"] = budget.bytes / (tokens * d0.geometry.kv_token_bytes)
        change = 100.0 * (_total(variants["d0_m05"], budget) / _total(d0, budget) - 1.0)
        facts[f"RM05 over D0 percent, {budget.name}"] = change
        facts[f"D0 less RM05 percent, {budget.name}"] = -change
    return facts


def _total(layout: Organization, budget: BudgetConfig) -> int:
    return layout.plan(budget.bytes).total_bytes


def _laws() -> dict[str, float]:
    extension = read_option("workload", "extension")
    original = read_option("workload", "original")
    burst = read_option("arrivals", "burst")
    return {
        "requests of a run": extension["num_requests"],
        "contexts": extension["num_contexts"],
        "prompt mean tokens": original["prompt_mean_tokens"],
        "longest output tokens": extension["output_max_tokens"],
        "burst on s": burst["on_s"],
        "burst off s": burst["off_s"],
        "retention K": read_option("retention", "k2")["requesters"],
        **{f"pinning K {k}": read_option("pinning", f"k{k}")["requesters"] for k in "123"},
        "central window first percentile": CENTRAL_PERCENT[0],
        "central window last percentile": CENTRAL_PERCENT[1],
    }


def _tests() -> dict[str, float]:
    extension, original = configs.family("extension22"), configs.family("original5")
    confirmation = configs.load("q6")
    alike = sum(each.is_self_comparison for each in confirmation.family.contrasts)
    retention_seeds = len(block_design("q9", "confirmation").seeds)
    level = confirmation.interval.level
    return {
        "extension family": extension.size,
        "stepwise contrasts": sum(each.campaign == "q1" for each in extension.contrasts),
        "budget contrasts": sum(each.campaign == "q4" for each in extension.contrasts),
        "split contrasts": sum(each.campaign == "split_sweep" for each in extension.contrasts),
        "budget interactions": sum("b63" in each.subtrahend for each in extension.interactions),
        "sharing interactions": sum(each.id.endswith("sharing") for each in extension.interactions),
        "family error percent": 100.0 * extension.alpha,
        "sign assignments": 2.0 ** len(block_design("q1", "main").seeds),
        "original family": original.size,
        "pinning family": configs.family("pinning2").size,
        "confirmation family": confirmation.family.size,
        "intervals of the confirmation": len(confirmation.family.contrasts) - alike,
        "self-comparisons of the confirmation": alike,
        "cross-budget contrasts of the confirmation": len(confirmation.family.interactions),
        "display resamples": confirmation.interval.resamples,
        "display level percent": 100.0 * level,
        "degrees of freedom of Q9": retention_seeds - 1,
        "t quantile of Q9": float(stdtrit(retention_seeds - 1, (1.0 + level) / 2.0)),
        **{
            f"preselected {organization.upper()} {budget}": arm.headroom or 0.0
            for budget, arms in confirmation.preselected.items()
            for organization, arm in arms.items()
        },
    }


def _schedule() -> dict[str, float]:
    pinning = [block_design("pinning", block) for block in ("b63", "b108")]
    extension, splits = block_design("q4", "budget"), block_design("split_sweep", "split")
    diagnostic = sum(_num_runs(block_design("submitted_work", point)) for point in ("L", "M", "H"))
    settings = len(pinning[0].pinning)
    num_pinning = sum(map(_num_runs, pinning))
    return {
        "headrooms of Q6": len(block_design("q6", "confirmation").headroom),
        "operating points of pinning": len(pinning),
        "organizations of pinning": len(pinning[0].organization),
        "settings of pinning": settings,
        "runs of pinning": num_pinning,
        "runs of a pinning setting": num_pinning / settings,
        "fresh runs of pinning": num_pinning * (settings - 1) / settings,
        "budgets of the extension": len(extension.budget),
        "splits of the extension": sum(name.startswith("d0") for name in splits.organization),
        "sharing levels of the extension": len(block_design("q3", "sharing").sharing),
        "traced diagnostic runs": diagnostic,
        "diagnostic runs": 2 * diagnostic,  # with a trace and without
        "runs of the original five": sum(
            2 * len(block_design(str(each.campaign), str(each.block)).seeds)
            for each in configs.family("original5").contrasts
        ),
    }


def _num_runs(design: Design) -> int:
    return len(design.cells()) * len(design.seeds)


def _fixed_work() -> dict[str, float]:
    campaign = standing("fixed_work").campaign
    assert isinstance(campaign, FixedWorkCampaign)
    first, second = campaign.chunks
    return {
        "wide step of fixed work": campaign.num_wide,
        "narrow step of fixed work": campaign.num_narrow,
        "mixed decodes of fixed work": campaign.num_mixed_decodes,
        "first chunk of fixed work": first.prefill_tokens,
        "second chunk of fixed work": second.prefill_tokens,
    }
