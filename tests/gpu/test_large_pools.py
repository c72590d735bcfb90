"""Paged kernels give stock's bits in pools as large as a server's, for both models' states.

On a GPU a pool has 40 GiB, or what there is room for; pages at its end lie far beyond byte 2**31.
In Triton's interpreter it has a few megabytes, in float32, which stock's convolution can multiply
there.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from kernel_cases import same_bits
from triton_on_cpu import INTERPRETED

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from paged_calls import (
    PagedUpdate,
    Places,
    Stock,
    carry,
    paged_conv,
    paged_gather,
    paged_scatter,
    stock_conv,
    stock_update,
)
from state_pools import FALCON_7B, GRANITE, Inputs, Layer, PagedPool

pytestmark = pytest.mark.usefixtures("wide_tiles")

POOL_BYTES = 40 * 2**30
LEAST_BYTES = 6 * 2**30
"""Less would not pass 2**31 elements."""
NUM_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """States at the far end of a large pool, and the same ones in stock's layout."""

    layer: Layer
    pool: PagedPool
    rows: torch.Tensor
    """Composites, those with the largest page ids."""
    places: Places
    """Theirs."""
    inputs: Inputs
    stock: Stock
    """State i + 1 is that of row i."""
    stock_rows: torch.Tensor


@pytest.fixture(scope="module", params=[FALCON_7B, GRANITE], ids=["falcon", "granite"])
def case(request: pytest.FixtureRequest, device_name: str) -> Case:
    layer: Layer = request.param
    num_bytes, dtype = POOL_BYTES, torch.bfloat16
    if device_name == "cpu":
        num_bytes, dtype = 2**20 * 40, torch.float32
    else:
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info()
        num_bytes = min(num_bytes, int(0.8 * free_bytes))
        if num_bytes < LEAST_BYTES:
            pytest.skip(f"a large pool needs {LEAST_BYTES:,} bytes, {num_bytes:,} are free")
    pool = PagedPool(layer, num_bytes, dtype, device_name, seed=1)
    num_rows = min(NUM_ROWS, pool.num_states // 2)
    farthest = pool.paged.members[:, 1:].max(0).values.topk(num_rows).indices
    rows = (farthest + 1).int()
    inputs = Inputs(layer, dtype, device_name)
    states = inputs.states(num_rows + 1)
    histories = inputs.random(num_rows + 1, layer.width - 1, layer.channels)
    places = pool.paged.at(rows)
    paged_scatter(pool.paged, places, states[1:])
    pool.paged.conv_lines[places.lines.long()] = histories[1:]
    return Case(
        layer=layer,
        pool=pool,
        rows=rows,
        places=places,
        inputs=inputs,
        stock=Stock(states=states, histories=histories),
        stock_rows=torch.arange(1, num_rows + 1, dtype=torch.int32, device=device_name),
    )


def test_pages_of_a_large_pool_lie_beyond_two_to_the_31_elements(case: Case) -> None:
    if INTERPRETED:
        pytest.skip("a pool of megabytes is not a large one")
    assert case.pool.last_page_byte > 2 * 2**31


def test_scattered_states_are_gathered_again_from_the_end_of_the_pool(case: Case) -> None:
    found = paged_gather(case.pool.paged, case.places)
    assert same_bits(found, case.stock.states[1:])


def test_decodes_at_the_end_of_the_pool_have_stocks_bits(case: Case) -> None:
    for _ in range(3):  # each reads what the one before has written
        token = case.inputs.token(len(case.rows))
        update = PagedUpdate(case.pool.paged, case.places, token)
        update.fused()
        out = torch.full_like(update.out, float("nan"))
        stock_update(case.stock, case.stock_rows, token, out)
        assert same_bits(update.out, out)
    assert same_bits(paged_gather(case.pool.paged, case.places), case.stock.states[1:])


def test_convolutions_at_the_end_of_the_pool_have_stocks_bits(case: Case) -> None:
    weights = case.inputs.filter()
    for _ in range(case.layer.width):  # every tap has been shifted once
        x = case.inputs.random(len(case.rows), case.layer.channels)
        ours = paged_conv(case.pool.paged, case.places, x.clone(), weights)
        assert same_bits(ours, stock_conv(case.stock, case.stock_rows, x.clone(), weights))
    lines = case.pool.paged.conv_lines[case.places.lines.long()]
    assert same_bits(lines, case.stock.histories[1:])


def test_a_line_is_carried_from_one_end_of_the_pool_to_the_other(case: Case) -> None:
    paged = case.pool.paged
    order = paged.lines[1:].argsort()
    near, far = (paged.at((order[i : i + 1] + 1).int()) for i in (0, len(order) - 1))
    line = case.inputs.random(1, case.layer.width - 1, case.layer.channels)
    paged.conv_lines[near.lines.long()] = line
    carry(paged, near, far)
    assert same_bits(paged.conv_lines[far.lines.long()], line)
