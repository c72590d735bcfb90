"""Tables A-1, A-2, B-2 and B-3: storage arithmetic of the configured organizations, to the byte.

No run and no published input: sizes follow from conf/model, conf/organization and conf/budget by
`hsexp.memory.organizations`; conf/campaign/capacity.yaml says which state sets and budgets.
"""

from functools import cache

from analysis.published import published_table
from analysis.runs import Origin
from analysis.tables.relations import Relation, relations_table
from analysis.tables.table import Table
from hsexp.config.base import parse_union
from hsexp.config.campaigns import CapacityCampaign
from hsexp.config.catalog import read_option
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig, StateGeometry
from hsexp.memory.organizations import D0, Organization, OrganizationConfig, StateMix, create

COMPUTED = Origin(data_kind="computed from the configured sizes")

MIB = 1024 * 1024
FALCON, GRANITE = "falcon_h1_7b", "granite_4_h"


def a1() -> Table:
    """Storage of the same state sets under S0, S1 and S2 (Eqs. 1 to 3)."""
    relations = []
    for mix in _capacity().mixes:
        objects = StateMix(attention_tokens=mix.attention_tokens, checkpoints=mix.checkpoints)
        attention = _organization("s2").attention_objects(objects)
        row = f"{attention}/{mix.checkpoints}"
        relations += [
            Relation(row=row, column="attention_objects", computed=attention, formula="mix"),
            Relation(row=row, column="recurrent_objects", computed=mix.checkpoints, formula="mix"),
            Relation(
                row=row,
                column="ideal_s2_slabs",
                computed=_organization("s2").min_slabs(objects),
                formula="slots over slots a slab",
            ),
        ]
        relations += [
            Relation(
                row=row,
                column=name,
                computed=_organization(name).mix_bytes(objects) / MIB,
                formula=f"Eq. {number}, MiB",
            )
            for number, name in enumerate(("s0", "s1", "s2"), start=1)
        ]
    return relations_table("A-1", "Storage of the same state sets", relations, origin=COMPUTED)


def a2() -> Table:
    """One state set against a budget: two fixed pools and one shared pool."""
    case = _capacity().feasibility
    mix = StateMix(attention_tokens=case.mix.attention_tokens, checkpoints=case.mix.checkpoints)
    only_attention = StateMix(attention_tokens=mix.attention_tokens, checkpoints=0)
    d0 = D0(
        _d0().config, StateGeometry.of(_model(FALCON)), attention_fraction=case.attention_fraction
    )
    limits = d0.limits(case.nominal_bytes)
    relations = [
        Relation(
            row=f"budget_{pool}_pool", column="D0", computed=float(limit / MIB), formula="split"
        )
        for pool, limit in limits.items()
    ]
    feasible = {}
    for label, organization in (("D0", d0), ("S2", _organization("s2"))):
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
        "One state set against a budget",
        relations,
        origin=COMPUTED,
        notes=tuple(
            f"{label} is {'' if fits else 'not '}feasible (paper: {printed[label]})."
            for label, fits in feasible.items()
        ),
    )


def b2() -> Table:
    """Whole pages and bytes of each organization under each nominal budget (Appendix B.3)."""
    relations = []
    unit = _label_unit_bytes()
    for budget in map(_budget, _capacity().budgets):
        pages = {name: _organization(name).plan(budget.bytes) for name in ("s0", "s1", "s2")}
        attention, recurrent = _d0().plan(budget.bytes).pools
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
        relations += [
            Relation(row=budget.name, column=column, computed=float(value), formula=formula)
            for column, (value, formula) in amounts.items()
        ]
    return relations_table("B-2", "Budgets in whole pages", relations, origin=COMPUTED)


def b3() -> Table:
    """Split and page sizes of D0 for both models (Appendix B.3)."""
    relations = []
    for row, name in (("Falcon", FALCON), ("Granite", GRANITE)):
        model = _model(name)
        d0 = create(_parsed_organization("d0"), model)
        assert isinstance(d0, D0)
        amounts = {
            "attention": (float(d0.attention_fraction), "conf/model"),
            "recurrent": (float(1 - d0.attention_fraction), "1 less attention's share"),
            "attention_page": (d0.unit_bytes, "block x KV of a token"),
            "recurrent_page": (d0.geometry.composite_bytes, "SSM and convolution state"),
        }
        relations += [
            Relation(row=row, column=column, computed=float(value), formula=formula)
            for column, (value, formula) in amounts.items()
        ]
    return relations_table("B-3", "D0's split and pages by model", relations, origin=COMPUTED)


def _label_unit_bytes() -> int:
    """Bytes of one budget label unit (Appendix B.10): the KV of the fewest whole attention blocks
    that are as large as one recurrent composite."""
    d0 = _d0()
    return d0.unit_bytes * -(-d0.geometry.composite_bytes // d0.unit_bytes)


@cache
def _capacity() -> CapacityCampaign:
    return CapacityCampaign.parse(read_option("campaign", "capacity")["campaign"])


@cache
def _organization(name: str) -> Organization:
    return create(_parsed_organization(name), _model(FALCON))


def _d0() -> D0:
    organization = _organization("d0")
    assert isinstance(organization, D0)
    return organization


def _parsed_organization(name: str) -> OrganizationConfig:
    parsed: OrganizationConfig = parse_union(
        OrganizationConfig, read_option("organization", name), path=name
    )
    return parsed


def _model(name: str) -> ModelConfig:
    return ModelConfig.parse(read_option("model", name))


def _budget(name: str) -> BudgetConfig:
    return BudgetConfig.parse(read_option("budget", name))
