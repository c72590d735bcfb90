"""Models from their config.json: sizes of states by hand, plans, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from hsexp.config.base import ConfigError, parse_union
from hsexp.config.catalog import read_option
from hsexp.memory import build_memory
from hsexp.memory.config import MemoryConfig
from hsexp.memory.geometry import ModelConfig, ServedModel, SizedModel, StateGeometry
from hsexp.memory.organizations import OrganizationConfig
from hsexp.models.naming import is_config
from hsexp.models.reading import read_model

CONFIGS = Path(__file__).parent / "configs"
KIB = 1024

SIZES = {
    # name: attention and recurrent layers, bytes of KV a token, of a recurrent state, of a
    # convolution state in one layer
    "bamba_9b": (3, 29, 4 * KIB, 2048 * KIB, 50_688),
    "falcon_h1_0_5b": (36, 36, 512, 384 * KIB, 10_752),
    "falcon_h1_7b": (44, 44, KIB, 1536 * KIB, 21 * KIB),
    "granite_4_0_h_micro": (4, 36, 2 * KIB, KIB * KIB, 26_112),
    "granite_4_0_h_small": (4, 36, 4 * KIB, 2048 * KIB, 50_688),
    "jamba_v0_1": (4, 28, 4 * KIB, 8192 * 16 * 2, 3 * 8192 * 2),
    "kimi_linear_48b_a3b": (7, 20, 576 * 2, 32 * 128 * 128 * 4, 3 * 3 * 4096 * 2),
    "lfm2_1_2b": (6, 10, 2 * KIB, 2 * 2048 * 2, 0),
    "minimax_text_01": (10, 70, 4 * KIB, 64 * 128 * 128 * 2, 0),
    "nemotron_h_8b": (4, 24, 4 * KIB, 128 * 64 * 128 * 4, 3 * (8192 + 2048) * 2),
    "nemotron_nano_9b_v2": (4, 27, 4 * KIB, 128 * 80 * 128 * 4, 3 * (10_240 + 2048) * 2),
    "olmo_hybrid_like": (8, 24, 2 * 30 * 128 * 2, 30 * 192 * 96 * 2, 3 * 30 * 384 * 2),
    "qwen3_5_like": (16, 48, 4 * KIB, 48 * 128 * 128 * 4, 3 * 80 * 128 * 2),
    "qwen3_next_80b_a3b": (12, 36, 2 * KIB, 32 * 128 * 128 * 2, 3 * 64 * 128 * 2),
    "zamba2_1_2b": (6, 38, 16 * KIB, KIB * KIB, 26_112),
    "zamba2_7b": (13, 81, 28_672, 112 * 64 * 64 * 2, 3 * (7168 + 256) * 2),
}


def test_every_fixture_has_its_sizes() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_config_gives_the_bytes_of_every_state(name: str) -> None:
    model = read_model(str(CONFIGS / f"{name}.json"))
    assert model.name == name
    assert (
        model.num_attention_layers,
        model.num_recurrent_layers,
        model.kv_token_bytes,
        model.ssm_bytes,
        model.conv_bytes,
    ) == SIZES[name]


def test_the_config_of_the_papers_model_is_the_shipped_option() -> None:
    shipped = ModelConfig.parse(read_option("model", "falcon_h1_7b"))
    read = read_model(
        str(CONFIGS / "falcon_h1_7b.json"),
        changes={"max_model_tokens": 8192, "d0_attention_fraction": 0.527383},
    )
    assert read.model_dump() == shipped.model_dump()


@pytest.mark.parametrize("organization", ["s0", "s1", "s2", "s3", "d0"])
@pytest.mark.parametrize("name", SIZES)
def test_every_model_is_planned_or_refused_in_a_sentence(name: str, organization: str) -> None:
    model = read_model(str(CONFIGS / f"{name}.json"))
    option = parse_union(
        OrganizationConfig, read_option("organization", organization), path="organization"
    )
    settings = MemoryConfig.without_policies(model=model, organization=option)
    try:
        memory = build_memory(settings, 4 * 1024**3)
    except ValueError as error:
        assert (name, organization) in REFUSED
        assert REFUSED[name, organization] in str(error)
        assert "\n" not in str(error)
        return
    assert (name, organization) not in REFUSED
    memory.check_integrity()
    assert memory.never_fits(4096) is None


REFUSED = {
    (name, organization): f"{organization} packs convolution states, and the model has none"
    for name in ("lfm2_1_2b", "minimax_text_01")
    for organization in ("s2", "s3")
}


def test_the_last_group_may_lack_layers_and_their_places_are_counted() -> None:
    bamba = read_model(str(CONFIGS / "bamba_9b.json"))
    assert (bamba.composites_per_checkpoint, bamba.num_missing_layers) == (10, 1)
    lfm2 = read_model(str(CONFIGS / "lfm2_1_2b.json"))
    assert (lfm2.composites_per_checkpoint, lfm2.num_missing_layers) == (2, 2)
    assert (bamba.num_empty_groups, lfm2.num_empty_groups) == (0, 1)


def test_a_model_without_convolutions_takes_no_pages_for_them_in_s1() -> None:
    model = read_model(str(CONFIGS / "minimax_text_01.json"))
    geometry = StateGeometry.of(model)
    s1 = parse_union(OrganizationConfig, read_option("organization", "s1"), path="s1")
    layout = MemoryConfig.without_policies(model=model, organization=s1).layout
    pages = build_memory(
        MemoryConfig.without_policies(model=model, organization=s1), 1024**3
    ).cache.states.pages_per_state
    assert pages == 7 * geometry.ssm_bytes // layout.places.page_bytes == 7


# -- where it is found -----------------------------------------------------------------------------


def test_a_folder_and_its_file_are_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    text = (CONFIGS / "bamba_9b.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(text, encoding="utf-8")
    assert read_model(str(folder)) == read_model(str(folder / "config.json"))
    assert read_model(str(folder)).name == "my-model"


def test_an_id_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--ibm-ai-platform--Bamba-9B" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    text = (CONFIGS / "bamba_9b.json").read_text(encoding="utf-8")
    (snapshot / "config.json").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = read_model("ibm-ai-platform/Bamba-9B")
    assert (model.name, model.num_recurrent_layers) == ("Bamba-9B", 29)
    with pytest.raises(ConfigError, match="has no model 'ibm-ai-platform/Other'"):
        read_model("ibm-ai-platform/Other")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("falcon_h1_7b", False), ("a/b", True), ("shape.json", True), ("nowhere", False)],
)
def test_a_path_or_an_id_is_told_from_the_name_of_an_option(text: str, expected: bool) -> None:
    assert is_config(text) is expected


# -- refusals --------------------------------------------------------------------------------------


def changed(name: str, tmp_path: Path, **changes: Any) -> str:
    fields = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8")) | changes
    path = tmp_path / "config.json"
    given = {key: value for key, value in fields.items() if value is not None}
    path.write_text(json.dumps(given), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_d_state": None}, "config.json: mamba_d_state is required"),
        ({"mamba_n_heads": "many"}, "mamba_n_heads must be a positive integer, got 'many'"),
        ({"attn_layer_indices": 3}, "attn_layer_indices must be a list of layers, got 3"),
        ({"torch_dtype": "int3"}, "dtype is not one of bfloat16, float16, float32: 'int3'"),
        ({"model_type": "llama"}, "model_type 'llama' is not a hybrid that is known here"),
        ({"num_hidden_layers": 3}, "is without recurrent layers: the model is not a hybrid"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_with_its_field(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read_model(changed("bamba_9b", tmp_path, **changes))


@pytest.mark.parametrize(
    ("name", "field", "kinds"),
    [
        (
            "granite_4_0_h_small",
            "layer_types",
            {"mamba": "linear_attention", "attention": "full_attention"},
        ),
        (
            "nemotron_nano_9b_v2",
            "hybrid_override_pattern",
            {"M": "linear_attention", "*": "full_attention", "-": "mlp"},
        ),
        ("zamba2_7b", "layers_block_type", {"mamba": "linear_attention", "hybrid": "hybrid"}),
    ],
)
def test_kinds_of_layers_have_the_names_of_newer_transformers_as_well(
    name: str, field: str, kinds: dict[str, str], tmp_path: Path
) -> None:
    known = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))[field]
    written = "layer_types" if field == "layer_types" else "layers_block_type"
    changes = {field: None} | {written: [kinds[kind] for kind in known]}
    newer = read_model(changed(name, tmp_path, **changes))
    known_model = read_model(str(CONFIGS / f"{name}.json"))
    assert newer.model_copy(update={"name": known_model.name}) == known_model


def test_a_real_engine_refuses_a_family_without_kernels_by_name() -> None:
    from hsexp.plan.run import VllmRunConfig

    model = read_model(str(CONFIGS / "jamba_v0_1.json"))
    assert isinstance(model, SizedModel)
    with pytest.raises(ConfigError, match="jamba_v0_1 has recurrent layers of another"):
        VllmRunConfig.parse({"engine": "vllm", "model": model})


@pytest.mark.parametrize(
    ("organization", "is_served"),
    [("s0", True), ("s1", False), ("s2", False), ("s3", False), ("d0", True)],
)
def test_a_real_engine_serves_gated_delta_net_where_a_state_is_one_page(
    organization: str, is_served: bool
) -> None:
    model = parse_union(
        ServedModel, read_model(str(CONFIGS / "qwen3_next_80b_a3b.json")), path="model"
    )
    layout = parse_union(
        OrganizationConfig, read_option("organization", organization), path="organization"
    )
    config = MemoryConfig.without_policies(model=model, organization=layout)
    if is_served:
        config.require_kernels()
        return
    with pytest.raises(ValueError, match=rf"{organization} keeps .*: s0 and d0 serve qwen3_next"):
        config.require_kernels()
