"""Tables A-1, A-2, B-2 and B-3, and the sizes behind them: storage arithmetic, to the byte.

They need no run and no published input: `hsexp.memory.organizations` gives the sizes of a model,
organizations and budgets; the campaign lists the state sets. At the paper's sizes the four tables
show the printed values too; any other launch of the campaign shows its own values only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from analysis.errors import NoInputsError
from analysis.published import published_table
from analysis.runs import Origin
from analysis.tables.registry import computed, counted
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Column, Table
from hsexp.config.campaigns import CapacityCampaign
from hsexp.config.catalog import read_option
from hsexp.labs.storage import (
    StorageRow,
    budget_rows,
    feasibility_rows,
    storage_rows,
    unit_rows,
)
from hsexp.memory.geometry import ModelConfig, StateGeometry
from hsexp.memory.organizations import D0, Organization, StateMix
from hsexp.plan.resolve import Resolved, memory_for, refused, standing

COMPUTED = Origin(data_kind=CapacityCampaign.method)

MIB = 1024 * 1024
FALCON, GRANITE = "falcon_h1_7b", "granite_4_h"


@counted("state-units", campaign="capacity", lacks="the sizes of a model's layers")
def state_units(resolved: Resolved) -> Table:
    """The units of each organization for one layer of the model (Table 1)."""
    geometry = StateGeometry.of(resolved.launch.model)
    return _table(
        resolved,
        "state-units",
        "Units of one layer",
        [asdict(row) for row in unit_rows(resolved.memories)],
        (
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="block", templates=("{block_tokens:,d}",), group="tokens"),
            Column(heading="grid", templates=("{grid_tokens:,d}",), group="tokens"),
            Column(heading="block", templates=("{block_bytes:,d}",), group="bytes"),
            Column(heading="checkpoint", templates=("{checkpoint_bytes:,d}",), group="bytes"),
        ),
        f"Recurrent layers for each attention layer: {geometry.composites}. KV of a token: "
        f"{geometry.kv_token_bytes:,} B. Of a recurrent layer: {geometry.ssm_bytes:,} B of SSM and "
        f"{geometry.conv_bytes:,} B of convolution state.",
    )


@counted("state-capacity", campaign="capacity", lacks="them for every organization")
def state_capacity(resolved: Resolved) -> Table:
    """How often each state set fits a budget, ideally packed (Eqs. A8 and D2)."""
    campaign = _campaign(resolved)
    return _mix_table(
        resolved,
        "state-capacity",
        f"How often a state set fits {campaign.capacity_bytes:,} bytes, ideally packed",
        lambda row: row.capacity,
    )


@computed("A-1", campaign="capacity")
def a1(resolved: Resolved) -> Table:
    """Storage of the same state sets under S0, S1 and S2 (Eqs. 1 to 3)."""
    title = "Storage of the same state sets"
    if not _is_the_papers(resolved):
        return _mix_table(
            resolved,
            "A-1",
            f"{title}, bytes",
            lambda row: row.allocated_bytes,
            _UNPRINTED,
        )
    layouts = resolved.layouts
    relations = []
    for mix in _campaign(resolved).mixes:
        objects = StateMix(attention_tokens=mix.attention_tokens, checkpoints=mix.checkpoints)
        attention = layouts["s2"].attention_objects(objects)
        row = f"{attention}/{mix.checkpoints}"
        relations += [
            Relation(row=row, column="attention_objects", computed=attention, formula="mix"),
            Relation(row=row, column="recurrent_objects", computed=mix.checkpoints, formula="mix"),
            Relation(
                row=row,
                column="ideal_s2_slabs",
                computed=layouts["s2"].min_slabs(objects),
                formula="slots over slots a slab",
            ),
        ]
        relations += [
            Relation(
                row=row,
                column=name,
                computed=layouts[name].mix_bytes(objects) / MIB,
                formula=f"Eq. {number}, MiB",
            )
            for number, name in enumerate(("s0", "s1", "s2"), start=1)
        ]
    return relations_table("A-1", title, relations, origin=COMPUTED)


@computed("A-2", campaign="capacity")
def a2(resolved: Resolved) -> Table:
    """One state set against a budget: two fixed pools and one shared pool."""
    title = "One state set against a budget"
    if not _is_the_papers(resolved):
        return _feasibility(resolved, title)
    case, layouts = _campaign(resolved).feasibility, resolved.layouts
    mix = StateMix(attention_tokens=case.mix.attention_tokens, checkpoints=case.mix.checkpoints)
    only_attention = StateMix(attention_tokens=mix.attention_tokens, checkpoints=0)
    d0 = D0(
        _d0(layouts).config,
        StateGeometry.of(resolved.launch.model),
        attention_fraction=case.attention_fraction,
    )
    limits = d0.limits(case.nominal_bytes)
    relations = [
        Relation(
            row=f"budget_{pool}_pool", column="D0", computed=float(limit / MIB), formula="split"
        )
        for pool, limit in limits.items()
    ]
    feasible = {}
    for label, organization in (("D0", d0), ("S2", layouts["s2"])):
        whole, attention = organization.mix_bytes(mix), organization.mix_bytes(only_attention)
        amounts = {
            "budget_total": (case.nominal_bytes / MIB, "budget"),
            "state_attention_objects": (organization.attention_objects(mix), "tokens over block"),
            "state_recurrent_checkpoints": (mix.checkpoints, "mix"),
            "attention_allocation": (attention / MIB, "objects x page"),
            "recurrent_and_conv_allocation": ((whole - attention) / MIB, "objects x page"),
            "total_allocation": (whole / MIB, "sum"),
        }
        if label == "S2":
            amounts["state_slabs"] = (organization.min_slabs(mix), "slots over slots a slab")
        relations += [
            Relation(row=row, column=label, computed=float(value), formula=formula)
            for row, (value, formula) in amounts.items()
        ]
        feasible[label] = organization.fits(case.nominal_bytes, mix, 1)
    printed = published_table("A-2").loc["model_feasibility"]
    return relations_table(
        "A-2",
        title,
        relations,
        origin=COMPUTED,
        notes=tuple(
            f"{label} is {'' if fits else 'not '}feasible (paper: {printed[label]})."
            for label, fits in feasible.items()
        ),
    )


@computed("B-2", campaign="capacity")
def b2(resolved: Resolved) -> Table:
    """Whole pages and bytes of each organization under each nominal budget (Appendix B.3)."""
    title = "Budgets in whole pages"
    if not _is_the_papers(resolved):
        return _budgets(resolved, title)
    relations = []
    layouts = resolved.layouts
    unit = _label_unit_bytes(_d0(layouts))
    for budget in resolved.budgets:
        pages = {name: layouts[name].plan(budget.bytes) for name in ("s0", "s1", "s2")}
        attention, recurrent = _d0(layouts).plan(budget.bytes).pools
        amounts = {
            "nominal": (budget.bytes, "conf/budget"),
            "override_d0_blocks": (budget.bytes / unit, f"nominal over {unit:,} B (B.10)"),
            "d0_attention": (attention.total_bytes, "whole units of its share"),
            "d0_recurrent": (recurrent.total_bytes, "whole units of its share"),
            "d0_total": (attention.total_bytes + recurrent.total_bytes, "sum"),
            "s0": (pages["s0"].total_bytes, "pages x page"),
            "s1_s2": (pages["s2"].total_bytes, "pages x page"),
        }
        for name, plan in pages.items():
            amounts[f"override_{name}_pages"] = (plan.pools[0].num_pages, "nearest whole page")
        relations += _relations(budget.name, amounts)
    return relations_table("B-2", title, relations, origin=COMPUTED)


@computed("B-3", campaign="capacity")
def b3(resolved: Resolved) -> Table:
    """Split and page sizes of D0 for both models (Appendix B.3)."""
    title = "D0's split and pages by model"
    if not _is_the_papers(resolved):
        return _split(resolved, title)
    relations = []
    for row, name in (("Falcon", FALCON), ("Granite", GRANITE)):
        amounts = {
            column: (value, formula)
            for (column, value), formula in zip(
                _split_of(_d0_for(resolved, name)).items(),
                (
                    "conf/model",
                    "1 less attention's share",
                    "block x KV of a token",
                    "SSM and convolution state",
                ),
                strict=True,
            )
        }
        relations += _relations(row, amounts)
    return relations_table("B-3", title, relations, origin=COMPUTED)


def _relations(row: str, amounts: Mapping[str, tuple[float, str]]) -> list[Relation]:
    """Relations of one row: column -> computed value and its formula."""
    return [
        Relation(row=row, column=column, computed=float(value), formula=formula)
        for column, (value, formula) in amounts.items()
    ]


# -- without published values ----------------------------------------------------------------------

_UNPRINTED = "The paper prints no values for these settings."


def _feasibility(resolved: Resolved, title: str) -> Table:
    case = _campaign(resolved).feasibility
    rows = [
        {
            "organization": row.organization,
            "attention_mib": row.attention_bytes / MIB,
            "recurrent_mib": row.recurrent_bytes / MIB,
            "total_mib": (row.attention_bytes + row.recurrent_bytes) / MIB,
            "limits_mib": " + ".join(
                f"{float(limit / MIB):.9g}" for limit in row.limits_bytes.values()
            ),
            "fits": "yes" if row.feasible else "no",
        }
        for row in feasibility_rows(resolved.memories, case)
    ]
    return _table(
        resolved,
        "A-2",
        title,
        rows,
        (
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="attention", templates=("{attention_mib:.9g}",), group="MiB"),
            Column(heading="recurrent", templates=("{recurrent_mib:.9g}",), group="MiB"),
            Column(heading="total", templates=("{total_mib:.9g}",), group="MiB"),
            Column(heading="limits", templates=("{limits_mib:}",), group="MiB"),
            Column(heading="fits", templates=("{fits}",)),
        ),
        f"{case.mix.attention_tokens:,} attention tokens and {case.mix.checkpoints} checkpoints in "
        f"{case.nominal_bytes / MIB:g} MiB; a D0 has {case.attention_fraction:g} of it for "
        "attention.",
        _UNPRINTED,
    )


def _budgets(resolved: Resolved, title: str) -> Table:
    rows = [
        {
            "budget": row.budget.name,
            "nominal_bytes": row.budget.bytes,
            "organization": row.organization,
            "pool": pool.name,
            "num_pages": pool.num_pages,
            "page_bytes": pool.page_bytes,
            "total_bytes": pool.total_bytes,
        }
        for row in budget_rows(resolved.memories, resolved.budgets)
        for pool in row.plan.pools
    ]
    return _table(
        resolved,
        "B-2",
        title,
        rows,
        (
            Column(heading="budget", templates=("{budget}",)),
            Column(heading="nominal B", templates=("{nominal_bytes:,d}",)),
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="pool", templates=("{pool}",)),
            Column(heading="pages", templates=("{num_pages:,d}",)),
            Column(heading="page B", templates=("{page_bytes:,d}",)),
            Column(heading="bytes", templates=("{total_bytes:,d}",)),
        ),
        "Every pool has a null page among its pages.",
        _UNPRINTED,
    )


def _split(resolved: Resolved, title: str) -> Table:
    splits = {
        name: _split_of(layout)
        for name, layout in resolved.layouts.items()
        if isinstance(layout, D0)
    }
    if not splits:
        raise NoInputsError("there is no D0 among the organizations")
    return _table(
        resolved,
        "B-3",
        title,
        [{"organization": name, **split} for name, split in splits.items()],
        (
            Column(heading="org.", templates=("{organization}",)),
            Column(heading="attention", templates=("{attention:.6f}",), group="share"),
            Column(heading="recurrent", templates=("{recurrent:.6f}",), group="share"),
            Column(heading="attention", templates=("{attention_page:,d}",), group="page B"),
            Column(heading="recurrent", templates=("{recurrent_page:,d}",), group="page B"),
        ),
        _UNPRINTED,
    )


def _mix_table(
    resolved: Resolved,
    name: str,
    title: str,
    amounts: Callable[[StorageRow], dict[str, int]],
    *notes: str,
) -> Table:
    """One row per state set, one column per organization."""
    campaign = _campaign(resolved)
    with refused("campaign.mixes"):
        rows = storage_rows(resolved.memories, campaign.mixes, campaign.capacity_bytes)
    columns = {
        memory.organization.name: memory.organization.name.replace(".", "_")
        for memory in resolved.memories
    }
    return _table(
        resolved,
        name,
        title,
        [
            {
                "attention_tokens": row.mix.attention_tokens,
                "checkpoints": row.mix.checkpoints,
                "slabs": row.slabs,
                **{columns[name]: amount for name, amount in amounts(row).items()},
            }
            for row in rows
        ],
        (
            Column(heading="attention tokens", templates=("{attention_tokens:,d}",)),
            Column(heading="checkpoints", templates=("{checkpoints:,d}",)),
            Column(heading="slabs", templates=("{slabs:,d}",)),
            *(
                Column(heading=organization, templates=(f"{{{column}:,d}}",))
                for organization, column in columns.items()
            ),
        ),
        *notes,
    )


def _table(
    resolved: Resolved,
    name: str,
    title: str,
    rows: Sequence[dict[str, Any]],
    view: Sequence[Column],
    *notes: str,
) -> Table:
    return Table(
        name=name,
        title=f"{title}, {resolved.launch.model.name}",
        rows=pd.DataFrame(rows),
        views=(tuple(view),),
        origin=COMPUTED,
        notes=(*notes, *resolved.notes),
    )


# -- contents of a launch --------------------------------------------------------------------------


def _is_the_papers(resolved: Resolved) -> bool:
    """Whether the launch has the paper's settings unchanged, so printed values apply."""
    return resolved.inputs == standing(_campaign(resolved).name).inputs


def _campaign(resolved: Resolved) -> CapacityCampaign:
    assert isinstance(resolved.campaign, CapacityCampaign)
    return resolved.campaign


def _d0(layouts: dict[str, Organization]) -> D0:
    d0 = layouts["d0"]
    assert isinstance(d0, D0)
    return d0


def _d0_for(resolved: Resolved, model: str) -> D0:
    """D0 sized for another model."""
    config = resolved.catalog.option("organization", "d0")
    d0 = memory_for(config, ModelConfig.parse(read_option("model", model))).layout
    assert isinstance(d0, D0)
    return d0


def _split_of(d0: D0) -> dict[str, float | int]:
    return {
        "attention": float(d0.attention_fraction),
        "recurrent": float(1 - d0.attention_fraction),
        "attention_page": d0.unit_bytes,
        "recurrent_page": d0.geometry.composite_bytes,
    }


def _label_unit_bytes(d0: D0) -> int:
    """Bytes of one budget label unit (Appendix B.10): the KV of the fewest whole attention blocks
    that are as large as one recurrent composite."""
    return d0.unit_bytes * -(-d0.geometry.composite_bytes // d0.unit_bytes)
