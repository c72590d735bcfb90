"""State sizes of a layer follow from the model's shape, to the byte."""

from collections.abc import Callable

import pytest
from toy_memory import TINY, TINY_D0

from analysis.published import published_value
from hsexp.config.base import ConfigError
from hsexp.config.catalog import read_option
from hsexp.memory.geometry import ModelConfig, StateGeometry

KIB = 1024


def geometry_of(model: str) -> StateGeometry:
    return StateGeometry.of(ModelConfig.parse(read_option("model", model)))


def test_falcon_has_the_published_payloads() -> None:
    geometry = geometry_of("falcon_h1_7b")
    assert geometry.ssm_bytes == published_value("1", "S0", "ssm_payload") * KIB
    assert geometry.conv_bytes == published_value("1", "S0", "conv_payload") * KIB
    assert geometry.composite_bytes == published_value("B-3", "Falcon", "recurrent_page")
    block = published_value("1", "S0", "attention_block_boundary")
    payload = published_value("1", "S0", "attention_kv_payload")
    assert geometry.kv_token_bytes * block == payload * KIB


def test_granite_has_the_published_pages() -> None:
    geometry = geometry_of("granite_4_h")
    block = published_value("1", "D0", "attention_block_boundary")
    attention = published_value("B-3", "Granite", "attention_page")
    assert geometry.kv_token_bytes * block == attention
    assert geometry.composite_bytes == published_value("B-3", "Granite", "recurrent_page")


def test_toy_sizes_are_the_ones_that_are_counted_with() -> None:
    # KV 2 * 32 * 2 B; SSM 64 * 24 * 2 B; convolution (64 + 2 * 24) * 1 * 2 B.
    tiny = StateGeometry.of(TINY)
    assert (tiny.kv_token_bytes, tiny.ssm_bytes, tiny.conv_bytes) == (128, 3072, 224)
    # SSM 8 * 12 * 2 B; convolution (8 + 2 * 12) * 1 * 2 B.
    d0 = StateGeometry.of(TINY_D0)
    assert (d0.kv_token_bytes, d0.ssm_bytes, d0.conv_bytes) == (128, 192, 64)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Bytes of KV a token, SSM state and convolution state of TINY are 128, 3,072, 224.
        ({"num_kv_heads": 3}, (384, 3072, 224)),
        ({"head_dim": 64}, (256, 3072, 224)),
        ({"ssm_heads": 4}, (128, 6144, 352)),  # (128 + 48) * 2
        ({"ssm_head_dim": 64}, (128, 6144, 352)),
        ({"d_state": 48}, (128, 6144, 320)),  # (64 + 96) * 2
        ({"ssm_groups": 2}, (128, 3072, 320)),  # (64 + 96) * 2
        ({"conv_width": 4}, (128, 3072, 672)),  # three taps are kept
        ({"dtype_bytes": 4}, (256, 6144, 448)),
        (
            {"num_attention_layers": 9, "num_recurrent_layers": 9},
            (128, 3072, 224),
        ),  # sizes are per layer
    ],
)
def test_every_dimension_enters_where_it_should(
    change: dict[str, int], expected: tuple[int, int, int]
) -> None:
    geometry = StateGeometry.of(TINY.model_copy(update=change))
    assert (geometry.kv_token_bytes, geometry.ssm_bytes, geometry.conv_bytes) == expected


def test_the_composite_is_recurrent_and_convolution_state() -> None:
    assert StateGeometry.of(TINY).composite_bytes == 3072 + 224


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("conv_width", 1, "model.conv_width must be greater than or equal to 2, got 1"),
        ("dtype_bytes", 3, "model.dtype_bytes must be 2 or 4, got 3"),
        ("d_state", 0, "model.d_state must be greater than 0, got 0"),
        ("head_dim", -128, "model.head_dim must be greater than 0, got -128"),
    ],
)
def test_an_impossible_shape_is_refused_with_field_and_value(
    field: str, value: int, message: str
) -> None:
    parse: Callable[[], ModelConfig] = lambda: ModelConfig.parse(  # noqa: E731
        TINY.model_dump() | {field: value}, path="model"
    )
    with pytest.raises(ConfigError) as refused:
        parse()
    assert str(refused.value) == message
