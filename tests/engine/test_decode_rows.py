"""What CUDA graphs read must lie still: rows of decode batches, staged by vLLM's metadata builder.

The builder is vLLM's with the plugin in it, on the CPU, told that full decode graphs are in use.
Checkpoints every 32 tokens; a request's block table names the composite of each 32 tokens.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import save_model, tiny
from vllm import EngineArgs
from vllm.config import CUDAGraphMode, set_current_vllm_config
from vllm.config.mamba import MambaBackendEnum
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

from hsexp.config.base import ConfigError
from hsexp.engine import paged
from hsexp.engine.manager import NULL_ID, NewComposite
from hsexp.engine.plugin import register
from hsexp.memory.checkpoint import NO_LINE

GRID = 32
MAX_RUNNING = 8


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_model(tmp_path_factory.mktemp("rows"), tiny(4), dtype="float32")
    arguments = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=MAX_RUNNING,
        mamba_cache_mode="align",
        enable_prefix_caching=True,
    )
    config = arguments.create_engine_config()
    config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    config.compilation_config.max_cudagraph_capture_size = MAX_RUNNING
    return config


@pytest.fixture
def builder(vllm_config: Any) -> Iterator[Any]:
    register()
    layout = paged.PagedLayout(
        num_pages=64,
        page_bytes=16384,
        num_composites=1,
        num_members=2,
        heads_per_member=2,
        head_dim=32,
        d_state=64,
        conv_rows=3,
        conv_channels=256,
        conv_offset_bytes=0,
        conv_step_bytes=0,
        line_bytes=4096,
        lines_per_page=4,
    )
    paged.open_table(layout, {"layer": 0}, vllm_config, torch.device("cpu"))
    table = paged.table()
    assert table is not None
    table.enter(
        NewComposite(composite_id=row, pages=(row, 20 + row), line=100 + row)
        for row in range(1, 13)
    )
    spec = MambaSpec(
        block_size=GRID, shapes=((2, 32, 64),), dtypes=(torch.float32,), mamba_type="mamba2"
    )
    with set_current_vllm_config(vllm_config):
        yield Mamba2AttentionMetadataBuilder(spec, ["layer"], vllm_config, torch.device("cpu"))
    paged.open_table(None, {}, vllm_config, torch.device("cpu"))


def batch(
    tables: list[list[int]], computed: list[int], new: list[int], *, prompt: int = 1
) -> CommonAttentionMetadata:
    """Requests with these composites, of which `new` tokens follow `computed` ones."""
    width = max(map(len, tables))
    starts = torch.tensor([0, *new]).cumsum(0).int()
    lens = torch.tensor(computed).int() + torch.tensor(new).int()
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lens,
        num_reqs=len(tables),
        num_actual_tokens=len(tables),
        max_query_len=max(new),
        max_seq_len=int(lens.max()),
        block_table_tensor=torch.tensor([row + [0] * (width - len(row)) for row in tables]).int(),
        slot_mapping=torch.zeros(len(tables), dtype=torch.int64),
        is_prefilling=torch.tensor([size > 0 and done < prompt
                                    for done, size in zip(computed, new, strict=True)]),
        seq_lens_cpu_upper_bound=lens,
    )  # fmt: skip


def ids(places: torch.Tensor) -> list[int]:
    """The composites of which these are all the places, whose first page is their id."""
    table = paged.table()
    assert table is not None
    found: list[int] = places[0].tolist()
    assert torch.equal(places, table.places[:, found])
    return found


PADDING: tuple[list[int], int, int] = ([NULL_ID], 0, 0)


def decodes(*rows: tuple[list[int], int, int]) -> CommonAttentionMetadata:
    return batch([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


def test_a_row_reads_its_last_composite_and_writes_the_one_of_its_new_token(builder: Any) -> None:
    rows = builder.build(
        0,
        decodes(
            ([5, 9], 40, 1),  # inside its second 32 tokens: in place
            ([5, 9, 12], 64, 1),  # after a boundary: from the checkpoint at 64 to a new one
            ([NULL_ID, NULL_ID, 7], 80, 1),  # what it no longer needs is null
        ),
    ).hsexp_rows
    assert ids(rows.source) == [9, 9, 7]
    assert ids(rows.target) == [9, 12, 7]


def test_replayed_batches_lie_where_the_captured_one_did(builder: Any) -> None:
    captured = builder.build_for_cudagraph_capture(decodes(*[([NULL_ID], 0, 1)] * 8)).hsexp_rows
    assert ids(captured.target) == [NULL_ID] * 8
    replayed = builder.build(0, decodes(([5], 3, 1), ([6, 8], 32, 1), *[PADDING] * 6)).hsexp_rows
    assert replayed.source.data_ptr() == captured.source.data_ptr()
    assert replayed.target.data_ptr() == captured.target.data_ptr()
    # What the captured graph reads now, the rows of the padding included.
    assert ids(captured.source) == [5, 6] + [NULL_ID] * 6
    assert ids(captured.target) == [5, 8] + [NULL_ID] * 6


def test_a_padded_row_leaves_nothing_of_the_batch_before(builder: Any) -> None:
    full = builder.build(0, decodes(*[([row + 1], 3, 1) for row in range(8)])).hsexp_rows
    assert ids(full.target) == [1, 2, 3, 4, 5, 6, 7, 8]
    builder.build(0, decodes(([5], 4, 1), *[PADDING] * 7))
    assert ids(full.target) == [5] + [NULL_ID] * 7
    assert ids(full.source) == [5] + [NULL_ID] * 7


def test_the_places_of_a_padded_row_are_none(builder: Any) -> None:
    rows = builder.build(0, decodes(([5], 4, 1), PADDING)).hsexp_rows
    # Two member pages and a line.
    assert rows.source.T.tolist() == rows.target.T.tolist() == [[5, 25, 105], [0, 0, NO_LINE]]


def test_a_state_that_is_entered_before_a_step_is_found_where_it_was_entered(builder: Any) -> None:
    """Its id named other pages in the step before."""
    table = paged.table()
    assert table is not None
    captured = builder.build_for_cudagraph_capture(decodes(*[([NULL_ID], 0, 1)] * 2)).hsexp_rows
    builder.build(0, decodes(([5], 3, 1), ([6], 3, 1)))
    table.enter([NewComposite(composite_id=5, pages=(5, 40), line=7)])
    builder.build(0, decodes(([5], 4, 1), ([6], 4, 1)))
    assert captured.source.T.tolist() == captured.target.T.tolist() == [[5, 40, 7], [6, 26, 106]]


def test_a_first_token_among_decodes_starts_from_nothing_in_the_same_place(builder: Any) -> None:
    """A prompt of one token has the shape of a decode, so a captured graph runs it. vLLM counts it
    as a prefill and leaves its own buffers as they were in the step before."""
    captured = builder.build_for_cudagraph_capture(decodes(*[([NULL_ID], 0, 1)] * 2)).hsexp_rows
    metadata = builder.build(0, decodes(([5], 3, 1), ([6], 0, 1)))
    assert metadata.num_prefills == 1
    assert ids(captured.source) == [5, NULL_ID]
    assert ids(captured.target) == [5, 6]


def test_only_batches_of_one_token_a_request_are_staged(builder: Any) -> None:
    captured = builder.build_for_cudagraph_capture(decodes(*[([NULL_ID], 0, 1)] * 2)).hsexp_rows
    mixed = builder.build(0, batch([[5], [6]], [3, 0], [1, 20], prompt=20)).hsexp_rows
    assert ids(mixed.source) == [5, NULL_ID]
    assert ids(mixed.target) == [5, 6]
    assert ids(captured.target) == [NULL_ID] * 2


def test_a_batch_that_no_graph_covers_keeps_its_rows(builder: Any) -> None:
    rows = builder.build(0, decodes(*[([row + 1], 3, 1) for row in range(9)])).hsexp_rows
    assert ids(rows.target) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("backend", MambaBackendEnum.FLASHINFER, "backend must be triton .* got flashinfer"),
        ("enable_stochastic_rounding", True, "enable_stochastic_rounding must be false"),
    ],
)
def test_another_state_update_than_ours_stops_the_start(
    field: str, value: Any, message: str, builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = builder.vllm_config, paged.table()
    assert table is not None
    monkeypatch.setattr(config.mamba_config, field, value)
    with pytest.raises(ConfigError, match=message):
        paged.open_table(table.layout, {"layer": 0}, config, torch.device("cpu"))
    paged.open_table(None, {}, config, torch.device("cpu"))  # contiguous states take any


def test_another_layout_of_convolution_states_stops_the_start(
    builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = builder.vllm_config, paged.table()
    assert table is not None
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "DS")
    with pytest.raises(ConfigError, match=r"VLLM_SSM_CONV_STATE_LAYOUT must be SD .* got DS"):
        paged.open_table(table.layout, {"layer": 0}, config, torch.device("cpu"))
    paged.open_table(None, {}, config, torch.device("cpu"))  # contiguous states take any
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "SD")
    paged.open_table(table.layout, {"layer": 0}, config, torch.device("cpu"))


class Layer:
    """What a table asks of a recurrent layer."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.kv_cache: Any = None
        self.hsexp_states: Any = None

    def get_state_dtype(self) -> tuple[torch.dtype, torch.dtype]:
        return torch.float32, torch.float32


@pytest.mark.parametrize(
    ("pages", "line", "places", "first_words"),
    [
        # Whole pages of 8 words: 4 of SSM state, then 4 of convolution state.
        (
            [5, 3],
            NO_LINE,
            {"num_members": 1, "conv_offset_bytes": 16},
            [(5, 0), (5, 4), (3, 0), (3, 4)],
        ),
        # Two member pages each, then a convolution page each.
        ([5, 3, 6, 2, 1, 4], NO_LINE, {"num_members": 2}, [(5, 0), (1, 0), (6, 0), (4, 0)]),
        # The two convolution states of a slot lie in one line, here the second of page 4.
        (
            [5, 3, 6, 2],
            9,
            {"num_members": 2, "lines_per_page": 2, "conv_step_bytes": 8},
            [(5, 0), (4, 4), (6, 0), (4, 6)],
        ),
    ],
    ids=["whole pages", "pages", "slots"],
)
def test_each_recurrent_layer_finds_its_own_part_of_a_checkpoint(
    pages: list[int], line: int, places: dict[str, int], first_words: list[tuple[int, int]]
) -> None:
    sizes = {"conv_offset_bytes": 0, "conv_step_bytes": 0, "lines_per_page": 1} | places
    layout = paged.PagedLayout(
        num_pages=7,
        page_bytes=32,
        num_composites=2,
        heads_per_member=1,
        head_dim=2,
        d_state=2,
        conv_rows=1,
        conv_channels=2,
        line_bytes=32 // sizes["lines_per_page"],
        **sizes,
    )
    table = paged.CompositeTable(layout, {"first": 0, "second": 1}, torch.device("cpu"))
    table.enter([NewComposite(composite_id=5, pages=tuple(pages), line=line)])
    words = torch.arange(7 * 8, dtype=torch.float32)
    found = []
    for layer in (Layer("first"), Layer("second")):
        table.bind(layer, words.view(torch.int8).view(7, 1, 1, 32))
        conv_lines, ssm_pages = layer.kv_cache
        states = layer.hsexp_states
        rows = table.find(torch.tensor([0, 5]), torch.tensor([5, 0]))
        for places, row in ((rows.source, 1), (rows.target, 0)):
            here = states.of(places)
            assert torch.equal(here.pages[:, row], states.members[:, 5])
            assert torch.equal(here.lines[row], states.lines[5])
            # No layer looks its places up again.
            shared = here.pages.untyped_storage(), here.lines.untyped_storage()
            assert {part.data_ptr() for part in shared} == {places.untyped_storage().data_ptr()}
        assert states.members.shape[0] == layout.num_members and states.members.is_contiguous()
        found += [
            divmod(int(ssm_pages[states.members[0, 5]].flatten()[0]), 8),
            divmod(int(conv_lines[states.lines[5]].flatten()[0]), 8),
        ]
    assert found == first_words


def test_a_composite_that_is_entered_twice_lies_where_it_was_entered_last(builder: Any) -> None:
    table = paged.table()
    assert table is not None
    addresses = table.members.data_ptr(), table.lines.data_ptr()
    table.enter(
        [
            NewComposite(composite_id=7, pages=(7, 11), line=33),
            NewComposite(composite_id=9, pages=(9, 12, 40), line=NO_LINE),
            NewComposite(composite_id=7, pages=(7, 13), line=34),
        ]
    )
    assert table.members[:, 7].tolist() == [7, 13]
    assert table.lines[:, 7].tolist() == [34]
    assert table.members[:, 9].tolist() == [9, 12]
    assert table.lines[:, 9].tolist() == [40]  # S1: the page behind the members
    assert addresses == (table.members.data_ptr(), table.lines.data_ptr())
