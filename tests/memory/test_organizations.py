"""Pools and allocated bytes of the paper's organizations, against the published tables."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_memory import TINY, toy_config, toy_memory

from analysis.published import published_value
from hsexp.config.base import parse_union
from hsexp.config.catalog import read_option
from hsexp.memory import MemoryConfig, build_memory
from hsexp.memory.config import BudgetConfig
from hsexp.memory.geometry import ModelConfig, StateGeometry
from hsexp.memory.organizations import (
    D0,
    S0,
    S1,
    S2,
    Organization,
    OrganizationConfig,
    StateMix,
    create,
)
from hsexp.memory.organizations.d0 import D0Config
from hsexp.memory.organizations.s0 import S0Config
from hsexp.memory.organizations.s1 import S1Config
from hsexp.memory.organizations.s2 import S2Config

KIB, MIB = 1024, 1024 * 1024

BUDGETS = ("b63", "b83", "b108")


def organization_of(name: str, *, model: str = "falcon_h1_7b", **changes: Any) -> Organization:
    config = parse_union(
        OrganizationConfig, read_option("organization", name) | changes, path="organization"
    )
    return create(config, ModelConfig.parse(read_option("model", model)))


FALCON = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
GEOMETRY = StateGeometry.of(FALCON)

S0_ = S0(S0Config.parse(read_option("organization", "s0")), GEOMETRY)
S1_ = S1(S1Config.parse(read_option("organization", "s1")), GEOMETRY)
S2_ = S2(S2Config.parse(read_option("organization", "s2")), GEOMETRY)
D0_ = D0(
    D0Config.parse(read_option("organization", "d0")),
    GEOMETRY,
    attention_fraction=FALCON.d0_attention_fraction,
)


def budget_bytes(name: str) -> int:
    return BudgetConfig.parse(read_option("budget", name)).bytes


def objects(attention: int, checkpoints: int, slabs: int | None = None) -> StateMix:
    """A mix in attention objects of 512 tokens."""
    return StateMix(attention_tokens=512 * attention, checkpoints=checkpoints, slabs=slabs)


# -- units: Table 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["S0", "S1", "S2", "D0"])
def test_boundaries_are_the_published_ones(name: str) -> None:
    organization = organization_of(name.lower())
    assert organization.block_size == published_value("1", name, "attention_block_boundary")
    boundary = published_value("1", name, "recurrent_checkpoint_boundary")
    assert organization.checkpoint_grid == boundary  # D0's 1,792 follows from the model


def test_units_are_the_published_ones() -> None:
    assert S0_.page_bytes == published_value("1", "S0", "ssm_unit") * KIB
    for organization, name in ((S1_, "S1"), (S2_, "S2")):
        assert organization.page_bytes == published_value("1", name, "attention_unit") * KIB
        assert organization.num_members == published_value("1", name, "ssm_units_per_checkpoint")
    assert S2_.num_slots == published_value("1", "S2", "conv_slots_per_slab")
    assert S2_.num_slots * published_value("1", "S2", "conv_slot") * KIB == S2_.page_bytes
    assert D0_.unit_bytes == published_value("1", "D0", "attention_unit") * KIB
    assert D0_.geometry.composite_bytes == published_value("1", "D0", "ssm_unit") * KIB


def test_d0_takes_the_smallest_multiple_whose_kv_covers_a_composite() -> None:
    # Falcon: 1,557 KiB at 1 KiB a token, rounded up to 256 or 16. Granite: 1,074,688 / 2,048 =
    # 524.75 tokens.
    assert D0_.checkpoint_grid == 1792
    assert organization_of("d0", model="granite_4_h").checkpoint_grid == 768
    assert organization_of("d0", checkpoint_multiple=16).checkpoint_grid == 1568
    assert organization_of("d0", checkpoint_grid=512).checkpoint_grid == 512


def test_granite_has_the_published_pages_in_d0() -> None:
    plan = organization_of("d0", model="granite_4_h").plan(budget_bytes("b160_granite"))
    attention, recurrent = plan.pools
    assert attention.page_bytes == published_value("B-3", "Granite", "attention_page")
    assert recurrent.page_bytes == published_value("B-3", "Granite", "recurrent_page")


def test_a_page_of_s0_holds_the_larger_of_block_and_state() -> None:
    large = organization_of("s0", block_size=2048, checkpoint_grid=2048)
    assert isinstance(large, S0) and large.page_bytes == 2048 * KIB


# -- budgets: Tables B-2 and B-3 -------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
def test_nominal_bytes_are_the_published_ones(budget: str) -> None:
    assert budget_bytes(budget) == published_value("B-2", budget, "nominal")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(("name", "bytes_column"), [("s0", "s0"), ("s1", "s1_s2"), ("s2", "s1_s2")])
def test_shared_pools_have_the_published_pages_and_bytes(
    name: str, bytes_column: str, budget: str
) -> None:
    plan = organization_of(name).plan(budget_bytes(budget))
    (pool,) = plan.pools
    assert pool.num_pages == published_value("B-2", budget, f"override_{name}_pages")
    assert plan.total_bytes == published_value("B-2", budget, bytes_column)


@pytest.mark.parametrize("budget", BUDGETS)
def test_d0_pools_have_the_published_bytes(budget: str) -> None:
    plan = D0_.plan(budget_bytes(budget))
    attention, recurrent = plan.pools
    assert attention.total_bytes == published_value("B-2", budget, "d0_attention")
    assert recurrent.total_bytes == published_value("B-2", budget, "d0_recurrent")
    assert plan.total_bytes == published_value("B-2", budget, "d0_total")


@pytest.mark.parametrize(
    ("budget", "usable"),
    [
        # Pages of Table B-2 less a null page a pool.
        ("b63", {"s0": [62], "s1": [192], "s2": [192], "d0": [3255, 28]}),
        ("b83", {"s0": [83], "s1": [253], "s2": [253], "d0": [4288, 38]}),
        ("b108", {"s0": [108], "s1": [330], "s2": [330], "d0": [5580, 50]}),
    ],
)
def test_every_pool_gives_one_page_away_as_its_null_page(
    budget: str, usable: dict[str, list[int]]
) -> None:
    for name, expected in usable.items():
        pools = organization_of(name).plan(budget_bytes(budget)).pools
        assert [pool.num_usable for pool in pools] == expected


def test_granites_checkpoints_are_nine_composites_in_every_organization() -> None:
    one = StateMix(attention_tokens=0, checkpoints=1)
    # S0 keeps a composite of 1,074,688 B in a page; S1's and S2's page is 1 MiB, which is an SSM
    # state, and S1 has a page for each convolution state, S2 one slab for four checkpoints.
    for name, num_pages, page_bytes in (
        ("s0", 9, 1_074_688),
        ("s1", 9 + 9, MIB),
        ("s2", 9 + 1, MIB),
        ("d0", 9, 1_074_688),
    ):
        organization = organization_of(name, model="granite_4_h")
        assert organization.mix_bytes(one) == num_pages * page_bytes
        assert organization.places.page_bytes == page_bytes
        assert organization.places.num_members == 1
    four = StateMix(attention_tokens=0, checkpoints=4)
    assert organization_of("s2", model="granite_4_h").mix_bytes(four) == (36 + 1) * MIB


def test_convolution_states_of_a_slot_lie_one_behind_the_other() -> None:
    places = organization_of("s2", model="granite_4_h").places
    ends = [(i + 1) * places.conv_step_bytes for i in range(9)]
    assert ends[0] == 3 * (64 * 64 + 2 * 128) * 2  # width - 1, channels, bytes
    assert ends[-1] <= 262_144 == places.page_bytes // places.lines_per_page


@pytest.mark.parametrize(("row", "model"), [("Falcon", "falcon_h1_7b"), ("Granite", "granite_4_h")])
def test_d0_splits_a_budget_as_published(row: str, model: str) -> None:
    limits = organization_of("d0", model=model).limits(10**9)
    assert limits["attention"] == round(published_value("B-3", row, "attention") * 10**6) * 1000
    assert limits["recurrent"] == round(published_value("B-3", row, "recurrent") * 10**6) * 1000


def test_an_organization_may_set_the_split_itself() -> None:
    half = organization_of("d0", attention_fraction=0.5).limits(1000)
    assert half == {"attention": 500, "recurrent": 500}


@pytest.mark.parametrize(
    ("nominal_bytes", "num_pages"), [(1535, 1), (1536, 2), (2559, 2), (2560, 3)]
)
def test_a_shared_budget_is_rounded_to_the_nearest_page(nominal_bytes: int, num_pages: int) -> None:
    plan = create(toy_config("s1"), TINY).plan(nominal_bytes)  # pages of 1,024 B
    assert plan.pools[0].num_pages == num_pages


# -- state sets: Tables, Eqs. 1 to 4 ---------------------------------------------------


@pytest.mark.parametrize("row", ["1/1", "16/16", "4/16", "0/16"])
def test_state_sets_cost_the_published_bytes(row: str) -> None:
    attention, checkpoints = (
        int(published_value("A-1", row, column))
        for column in ("attention_objects", "recurrent_objects")
    )
    mix = objects(attention, checkpoints)
    assert S2_.min_slabs(mix) == published_value("A-1", row, "ideal_s2_slabs")
    for organization in (S0_, S1_, S2_):
        published = published_value("A-1", row, organization.name)
        # Printed in MiB with six decimals.
        assert organization.mix_bytes(mix) / MIB == pytest.approx(published, abs=6e-7)


def test_a_set_that_fits_a_shared_pool_may_exceed_one_of_two() -> None:
    def mib(row: str, column: str) -> float:
        return published_value("A-2", row, column)

    nominal = int(mib("budget_total", "S2") * MIB)
    assert nominal == mib("budget_total", "D0") * MIB
    fraction = mib("budget_attention_pool", "D0") / mib("budget_total", "D0")
    d0 = organization_of("d0", attention_fraction=fraction)
    units = int(published_value("A-2", "state_attention_objects", "D0"))
    checkpoints = int(published_value("A-2", "state_recurrent_checkpoints", "D0"))
    mix = StateMix(attention_tokens=16 * units, checkpoints=checkpoints)
    assert S2_.attention_objects(mix) == published_value("A-2", "state_attention_objects", "S2")

    attention = StateMix(attention_tokens=mix.attention_tokens, checkpoints=0)
    recurrent = StateMix(attention_tokens=0, checkpoints=checkpoints)
    for organization, column in ((d0, "D0"), (S2_, "S2")):
        assert organization.mix_bytes(attention) == mib("attention_allocation", column) * MIB
        expected = mib("recurrent_and_conv_allocation", column) * MIB
        assert organization.mix_bytes(recurrent) == pytest.approx(expected, abs=1)
        assert organization.mix_bytes(mix) == pytest.approx(
            mib("total_allocation", column) * MIB, abs=1
        )
    assert not d0.fits(nominal, mix, 1)
    assert S2_.fits(nominal, mix, 1)


counts = st.integers(min_value=0, max_value=2000)


@given(attention=counts, checkpoints=counts)
def test_state_sets_follow_equations_1_to_4(attention: int, checkpoints: int) -> None:
    mix = objects(attention, checkpoints)
    s0, s1, s2 = (organization.mix_bytes(mix) / KIB for organization in (S0_, S1_, S2_))
    slabs = math.ceil(checkpoints / 16)
    assert s0 == 1557 * (attention + checkpoints)
    assert s1 == 512 * attention + 2048 * checkpoints
    assert s2 == 512 * attention + 1536 * checkpoints + 512 * slabs
    assert s0 - s1 == 1045 * attention - 491 * checkpoints
    assert s1 - s2 == 512 * (checkpoints - slabs)


@given(attention=counts, checkpoints=st.integers(min_value=1, max_value=2000))
def test_s1_is_smaller_than_s0_above_the_published_ratio_only(
    attention: int, checkpoints: int
) -> None:
    mix = objects(attention, checkpoints)
    smaller = S1_.mix_bytes(mix) < S0_.mix_bytes(mix)
    assert smaller == (attention * 1045 > 491 * checkpoints)


@given(attention=counts, checkpoints=counts, spare=st.integers(min_value=0, max_value=9))
def test_fragmented_slabs_cost_a_page_each(attention: int, checkpoints: int, spare: int) -> None:
    ideal = objects(attention, checkpoints)
    fragmented = objects(attention, checkpoints, slabs=S2_.min_slabs(ideal) + spare)
    assert S2_.mix_bytes(fragmented) - S2_.mix_bytes(ideal) == spare * 512 * KIB


@given(
    tokens=st.integers(min_value=0, max_value=100_000),
    checkpoints=st.integers(min_value=0, max_value=500),
)
def test_d0_allocates_whole_units_of_both_kinds(tokens: int, checkpoints: int) -> None:
    mix = StateMix(attention_tokens=tokens, checkpoints=checkpoints)
    assert D0_.mix_bytes(mix) / KIB == 16 * math.ceil(tokens / 16) + 1557 * checkpoints


def test_a_state_that_fills_its_last_member_page_in_part_takes_the_whole_page() -> None:
    # 2,304 B of SSM state in pages of 1,024 B: three members, and in S1 a convolution page.
    model = TINY.model_copy(update={"d_state": 18})
    assert StateGeometry.of(model).ssm_bytes == 2304
    one = StateMix(attention_tokens=0, checkpoints=1)
    assert create(toy_config("s1"), model).mix_bytes(one) == 4 * 1024
    assert create(toy_config("s2"), model).mix_bytes(one) == 4 * 1024


def test_partly_filled_blocks_cost_whole_ones() -> None:
    one_more = StateMix(attention_tokens=513, checkpoints=0)
    assert S1_.mix_bytes(one_more) == 2 * 512 * KIB
    assert D0_.mix_bytes(one_more) == 33 * 16 * KIB


# -- capacity: Eqs. A8 and D2 ----------------------------------------------------------------------


def test_100_mib_hold_the_published_number_of_mixes() -> None:
    for organization in (S0_, S1_, S2_):
        name = f"ideal capacity {organization.name.upper()} for a=(1,1) at 100 MiB"
        capacity = organization.capacity(100 * MIB, objects(1, 1))
        assert capacity == published_value("text", "A.2", name)  # 32, 40, 49


@pytest.mark.parametrize("mix", [(1, 1), (3, 1), (1, 5), (0, 1), (1, 0), (7, 0), (40, 2)])
@pytest.mark.parametrize("nominal_bytes", [0, 5 * MIB, 100 * MIB])
def test_a_shared_pool_holds_the_most_mixes_that_fit(
    mix: tuple[int, int], nominal_bytes: int
) -> None:
    attention, checkpoints = mix
    for organization in (S0_, S1_, S2_):
        fits = [
            organization.mix_bytes(objects(attention * z, checkpoints * z)) <= nominal_bytes
            for z in range(300)
        ]
        assert fits == sorted(fits, reverse=True)
        assert organization.capacity(nominal_bytes, objects(*mix)) == fits.count(True) - 1


def test_two_mixes_never_share_a_block() -> None:
    # A mix of one block and one token takes two blocks; three hold one mix, though also 2 x 1 token
    # more than two blocks.
    for organization in (S0_, S1_, S2_):
        mix = StateMix(attention_tokens=organization.block_size + 1, checkpoints=0)
        one_block = organization.mix_bytes(objects(1, 0))
        assert [organization.capacity(n * one_block, mix) for n in (3, 4)] == [1, 2]
    d0 = organization_of("d0", attention_fraction=0.5)
    mix = StateMix(attention_tokens=17, checkpoints=0)
    assert [d0.capacity(2 * n * 16 * KIB, mix) for n in (3, 4)] == [1, 2]


@pytest.mark.parametrize("mix", [(1, 1), (32, 1), (400, 1), (1, 5), (0, 1), (1, 0)])
def test_d0_holds_what_its_scarcer_pool_holds(mix: tuple[int, int]) -> None:
    units, checkpoints = mix
    d0 = organization_of("d0", attention_fraction=0.5)
    pool_kib = 50 * 1024
    bounds = []
    if units:
        bounds.append(pool_kib // (16 * units))
    if checkpoints:
        bounds.append(pool_kib // (1557 * checkpoints))
    state_mix = StateMix(attention_tokens=16 * units, checkpoints=checkpoints)
    assert d0.capacity(100 * MIB, state_mix) == min(bounds)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "s2",
            {"slot_bytes": 16384},
            "slot_bytes 16384 must hold a convolution state of 21504 bytes "
            "and fit a page of 524288; 32768 makes 16 slots a page",
        ),
        (
            "s2",
            {"slot_bytes": 524289},
            "slot_bytes 524289 must hold a convolution state of 21504 bytes "
            "and fit a page of 524288; 32768 makes 16 slots a page",
        ),
        (
            "s1",
            {"block_size": 16, "checkpoint_grid": 16},
            "block_size 16 makes pages of 16384 bytes, too small for a convolution state of 21504",
        ),
        (
            "s2",
            {"block_size": 16, "checkpoint_grid": 16},
            "block_size 16 makes pages of 16384 bytes, too small for a convolution state of 21504",
        ),
        ("d0", {"block_size": 20}, "block_size 20 must divide the checkpoint grid of 1792 tokens"),
        ("d0", {"checkpoint_grid": 8}, "block_size 16 must divide the checkpoint grid of 8 tokens"),
        *(
            (
                name,
                {"checkpoint_grid": 768},
                "block_size 512 must divide the checkpoint grid of 768 tokens",
            )
            for name in ("s0", "s1", "s2")
        ),
        *(
            (
                name,
                {"checkpoint_grid": 256},
                "block_size 512 must divide the checkpoint grid of 256 tokens",
            )
            for name in ("s0", "s1", "s2")
        ),
    ],
)
def test_sizes_that_cannot_work_are_refused_with_field_and_value(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as refused:
        organization_of(name, **changes)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"slot_bytes": 32768},
            "slot_bytes 32768 must hold 9 convolution states of 26112 bytes, 235008 in all, "
            "and fit a page of 1048576; 262144 makes 4 slots a page",
        ),
        (
            {"block_size": 64, "checkpoint_grid": 64},
            "block_size 64 makes pages of 131072 bytes, too small for 9 convolution states of "
            "26112 bytes, 235008 in all",
        ),
    ],
)
def test_a_slot_too_small_for_the_states_of_all_recurrent_layers_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as refused:
        organization_of("s2", model="granite_4_h", **changes)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("name", "nominal_bytes", "message"),
    [
        ("s0", 1_594_368, "pool shared needs at least 2 pages, got 1"),
        ("s1", 524_288, "pool shared needs at least 2 pages, got 1"),
        ("s2", 1, "pool shared needs at least 2 pages, got 0"),
        # 5 MB: 160 attention units, 2.36 MB of recurrent composites.
        ("d0", 5_000_000, "pool recurrent needs at least 2 pages, got 1"),
    ],
)
def test_a_budget_without_a_usable_page_is_refused(
    name: str, nominal_bytes: int, message: str
) -> None:
    config = MemoryConfig.without_policies(
        model=ModelConfig.parse(read_option("model", "falcon_h1_7b")),
        organization=parse_union(
            OrganizationConfig, read_option("organization", name), path="organization"
        ),
    )
    with pytest.raises(ValueError) as refused:
        build_memory(config, nominal_bytes)
    assert str(refused.value) == message


def test_too_few_slabs_for_the_checkpoints_are_refused() -> None:
    with pytest.raises(ValueError, match="2 slabs cannot hold 33 convolution states"):
        S2_.mix_bytes(objects(0, 33, slabs=2))


def test_the_capacity_for_nothing_is_refused(organization: str) -> None:
    empty = StateMix(attention_tokens=0, checkpoints=0)
    with pytest.raises(ValueError, match="needs attention_tokens or checkpoints, got 0 and 0"):
        organization_of(organization).capacity(MIB, empty)


# -- construction ----------------------------------------------------------------------------------


def test_a_memory_is_built_over_its_planned_pools(organization: str) -> None:
    memory = toy_memory(organization, 30, num_states=5)
    names = ["attention", "recurrent"] if organization == "d0" else ["shared"]
    assert [pool.spec.name for pool in memory.cache.pools] == names
    assert memory.cache.attention_pool is memory.cache.pools[0]
    assert memory.cache.states.pool is memory.cache.pools[-1]
    assert (memory.block_size, memory.checkpoint_grid) == (
        (2, 8) if organization == "d0" else (8, 8)
    )
    memory.check_integrity()


def test_variants_of_the_catalog_are_all_built() -> None:
    for name, grid in (("d0_m512", 512), ("d0_p05", 1792), ("d0_m10", 1792)):
        data = read_option("organization", "d0") | {
            key: value
            for key, value in read_option("organization", name).items()
            if key != "defaults"
        }
        config = parse_union(OrganizationConfig, data, path="organization")
        variant = create(config, FALCON)
        assert isinstance(variant, D0) and variant.checkpoint_grid == grid


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3", "d0"])
def test_states_are_paged_where_one_takes_several_pages(name: str) -> None:
    layout = organization_of(name)
    assert layout.config.pages_states == (layout.places.num_members > 1)
