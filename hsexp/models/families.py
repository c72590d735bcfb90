"""State bytes of each family of hybrid models, from the fields of its config.json.

Shapes are those of vLLM 0.27.1 (`vllm/model_executor/layers/mamba/mamba_utils.py`, and each model's
`get_mamba_state_shape_from_config`), on one GPU:

    Mamba2              conv (taps - 1) (heads head_dim + 2 groups d_state), state heads head_dim d_state
    Mamba1              conv (taps - 1) inner, state inner d_state
    gated delta net     conv (taps - 1) (2 k_heads k_dim + v_heads v_dim), state v_heads v_dim k_dim
    Kimi delta attention  conv (taps - 1) 3 heads dim, state heads dim dim in FP32
    linear attention    no conv, state heads dim dim
    short convolution   (taps - 1) channels; it is the whole state

Elements have the model's dtype unless its family keeps states in another one.
"""  # noqa: E501

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hsexp.memory.geometry import GATED_DELTA_NET
from hsexp.models.document import Document

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_ATTENTION = ("attention", "full_attention")
_MAMBA = ("mamba", "linear_attention")
"""Kinds of layers in lists; transformers has written the second ones since 5.13."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """How many layers keep keys and values, and how many a recurrent state; some keep both."""

    attention: int
    recurrent: int


def dtype_bytes(document: Document) -> int:
    """Bytes of an element of the weights, keys and values."""
    name = document.text("dtype", document.text("torch_dtype", "bfloat16"))
    if name not in _DTYPE_BYTES:
        known = ", ".join(_DTYPE_BYTES)
        raise document.refusal("dtype", f"is not one of {known}: {name!r}")
    return _DTYPE_BYTES[name]


def falcon_h1(document: Document) -> dict[str, Any]:
    """Attention and Mamba2 side by side in every layer."""
    layers = document.count("num_hidden_layers")
    return _mamba2(
        document,
        Layers(attention=layers, recurrent=layers),
        heads=document.count("mamba_n_heads"),
        head_dim=document.count("mamba_d_head"),
        groups=document.count("mamba_n_groups", default=1),
    )


def granite_4_h(document: Document) -> dict[str, Any]:
    kinds = document.layers("layer_types", "layers_block_type")
    heads = document.count("mamba_n_heads")
    inner = document.count("mamba_expand", default=2) * document.count("hidden_size")
    return _mamba2(
        document,
        _count(kinds, attention=_ATTENTION, recurrent=_MAMBA),
        heads=heads,
        head_dim=_whole(document, "mamba_d_head", inner, heads),
        groups=document.count("mamba_n_groups", default=1),
    )


def bamba(document: Document) -> dict[str, Any]:
    layers, attention = document.count("num_hidden_layers"), document.layers("attn_layer_indices")
    heads = document.count("mamba_n_heads")
    inner = document.count("mamba_expand", default=2) * document.count("hidden_size")
    return _mamba2(
        document,
        Layers(attention=len(attention), recurrent=layers - len(attention)),
        heads=heads,
        head_dim=_whole(document, "mamba_d_head", inner, heads),
        groups=document.count("mamba_n_groups", default=1),
    )


def nemotron_h(document: Document) -> dict[str, Any]:
    """A pattern of characters, or its newer list: Mamba2, attention, and layers without states."""
    kinds = document.layers("hybrid_override_pattern", "layers_block_type", "layer_types")
    state_bytes = _DTYPE_BYTES[document.text("mamba_ssm_cache_dtype", "float32")]
    return _mamba2(
        document,
        _count(kinds, attention=("*", *_ATTENTION), recurrent=("M", *_MAMBA)),
        heads=document.count("mamba_num_heads"),
        head_dim=document.count("mamba_head_dim"),
        groups=document.count("n_groups"),
        names=("ssm_state_size", "conv_kernel"),
        state_bytes=state_bytes,
    )


def zamba2(document: Document) -> dict[str, Any]:
    """Every layer has a Mamba2 state; hybrid ones also have keys and values of a shared block."""
    kinds = document.layers("layers_block_type", "layer_types")
    found = _count(kinds, attention=("hybrid",), recurrent=(*_MAMBA, "hybrid"))
    heads = document.count("n_mamba_heads")
    inner = document.count("mamba_expand", default=2) * document.count("hidden_size")
    fields = _mamba2(
        document,
        found,
        heads=heads,
        head_dim=_whole(document, "mamba_headdim", inner, heads),
        groups=document.count("mamba_ngroups", default=1),
    )
    # The shared block reads the hidden state beside the embedding, so its heads are twice as wide.
    width = 2 * document.count("hidden_size") // document.count("num_attention_heads")
    return fields | {"head_dim": document.count("attention_head_dim", default=width)}


def jamba(document: Document) -> dict[str, Any]:
    """Mamba1 with an attention layer in each period."""
    layers, period = document.count("num_hidden_layers"), document.count("attn_layer_period")
    offset = document.count("attn_layer_offset")
    attention = sum(layer % period == offset for layer in range(layers))
    inner = document.count("mamba_expand", default=2) * document.count("hidden_size")
    size = dtype_bytes(document)
    return _sized(
        document,
        Layers(attention=attention, recurrent=layers - attention),
        family="Mamba1",
        recurrent_bytes=inner * document.count("mamba_d_state", default=16) * size,
        conv_bytes=(document.count("mamba_d_conv", default=4) - 1) * inner * size,
    )


def gated_delta_net(document: Document) -> dict[str, Any]:
    """Qwen3-Next, Qwen3.5 and OLMo hybrid."""
    if document.has("layer_types"):
        kinds = document.layers("layer_types")
        found = _count(kinds, attention=("full_attention",), recurrent=("linear_attention",))
    else:
        layers = document.count("num_hidden_layers")
        attention = layers // document.count("full_attention_interval", default=4)
        found = Layers(attention=attention, recurrent=layers - attention)
    keys = document.count("linear_num_key_heads") * document.count("linear_key_head_dim")
    values = document.count("linear_num_value_heads") * document.count("linear_value_head_dim")
    size = dtype_bytes(document)
    state_size = (
        _DTYPE_BYTES[document.text("mamba_ssm_dtype", "")]
        if (document.has("mamba_ssm_dtype"))
        else size
    )
    taps = document.count("linear_conv_kernel_dim", default=4)
    return _sized(
        document,
        found,
        family=GATED_DELTA_NET,
        recurrent_bytes=values * document.count("linear_key_head_dim") * state_size,
        conv_bytes=(taps - 1) * (2 * keys + values) * size,
    )


def kimi_linear(document: Document) -> dict[str, Any]:
    """Kimi delta attention, and MLA, which keeps one latent and one rotary key a token."""
    linear = document.part("linear_attn_config")
    attention = len(linear.layers("full_attn_layers"))
    heads, dim = linear.count("num_heads"), linear.count("head_dim")
    taps, size = linear.count("short_conv_kernel_size", default=4), dtype_bytes(document)
    latent = document.count("kv_lora_rank") + document.count("qk_rope_head_dim")
    return _sized(
        document,
        Layers(attention=attention, recurrent=document.count("num_hidden_layers") - attention),
        family="Kimi delta attention",
        recurrent_bytes=heads * dim * dim * 4,
        conv_bytes=(taps - 1) * 3 * heads * dim * size,
        kv_token_bytes=latent * size,
    )


def lfm2(document: Document) -> dict[str, Any]:
    """Gated short convolutions: their state is all that is recurrent."""
    if document.has("layer_types"):
        kinds = document.layers("layer_types")
        found = _count(kinds, attention=("full_attention",), recurrent=("conv",))
    else:
        attention = len(document.layers("full_attn_idxs"))
        layers = document.count("num_hidden_layers")
        found = Layers(attention=attention, recurrent=layers - attention)
    channels = document.count("conv_dim", "hidden_size")
    taps, size = document.count("conv_L_cache", default=3), dtype_bytes(document)
    return _sized(
        document,
        found,
        family="short convolution",
        recurrent_bytes=(taps - 1) * channels * size,
        conv_bytes=0,
    )


def minimax(document: Document) -> dict[str, Any]:
    """Linear attention (lightning attention) with a full one now and then."""
    if document.has("attn_type_list"):
        kinds = document.layers("attn_type_list")
        found = _count(kinds, attention=(1,), recurrent=(0,))
    else:
        kinds = document.layers("layer_types")
        found = _count(kinds, attention=("full_attention",), recurrent=("linear_attention",))
    heads = document.count("num_attention_heads")
    dim = document.count("head_dim", default=document.count("hidden_size") // heads)
    return _sized(
        document,
        found,
        family="linear attention",
        recurrent_bytes=heads * dim * dim * dtype_bytes(document),
        conv_bytes=0,
    )


def _mamba2(
    document: Document,
    layers: Layers,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    names: tuple[str, str] = ("mamba_d_state", "mamba_d_conv"),
    state_bytes: int | None = None,
) -> dict[str, Any]:
    size = dtype_bytes(document)
    return _common(document, layers) | {
        "num_kv_heads": _kv_heads(document),
        "head_dim": _head_dim(document),
        "ssm_heads": heads,
        "ssm_head_dim": head_dim,
        "d_state": document.count(names[0]),
        "ssm_groups": groups,
        "conv_width": document.count(names[1], default=4),
        "dtype_bytes": size,
        "ssm_dtype_bytes": None if state_bytes in (None, size) else state_bytes,
    }


def _sized(
    document: Document,
    layers: Layers,
    *,
    family: str,
    recurrent_bytes: int,
    conv_bytes: int,
    kv_token_bytes: int | None = None,
) -> dict[str, Any]:
    if kv_token_bytes is None:
        heads, dim = _kv_heads(document), _head_dim(document)
        kv_token_bytes = 2 * heads * dim * dtype_bytes(document)
    return _common(document, layers) | {
        "kind": "sized",
        "family": family,
        "kv_bytes": kv_token_bytes,
        "recurrent_bytes": recurrent_bytes,
        "convolution_bytes": conv_bytes,
    }


def _common(document: Document, layers: Layers) -> dict[str, Any]:
    for kind, count in (("attention", layers.attention), ("recurrent", layers.recurrent)):
        if count < 1:
            raise document.refusal(
                "num_hidden_layers", f"is without {kind} layers: the model is not a hybrid"
            )
    return {
        "num_attention_layers": layers.attention,
        "num_recurrent_layers": layers.recurrent,
        "max_model_tokens": document.count("max_position_embeddings"),
    }


def _count(
    kinds: Sequence[Any], *, attention: tuple[Any, ...], recurrent: tuple[Any, ...]
) -> Layers:
    return Layers(
        attention=sum(kind in attention for kind in kinds),
        recurrent=sum(kind in recurrent for kind in kinds),
    )


def _kv_heads(document: Document) -> int:
    return document.count("num_key_value_heads", "num_attention_heads")


def _head_dim(document: Document) -> int:
    heads, hidden = document.count("num_attention_heads"), document.count("hidden_size")
    return document.count("head_dim", "attention_head_dim", default=hidden // heads)


def _whole(document: Document, name: str, width: int, heads: int) -> int:
    """Channels of a head: its own field, or the width over the heads where that says "auto"."""
    if document.text(name, "auto") == "auto":
        return width // heads
    return document.count(name)
