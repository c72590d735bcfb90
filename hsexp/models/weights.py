"""Parameters of each family of hybrid models, from the fields of its config.json.

Only matrices count, and a weight is what a token is multiplied with. Norms, biases, decays and
convolutions are left out: they are less than half a percent. Shapes are those of transformers 5.

    attention         hidden (query + 2 KV) width + query width hidden; twice the query where it is gated
    Mamba2            hidden (2 inner + 2 groups d_state + heads) + inner hidden
    Mamba1            hidden 2 inner + inner (dt_rank + 2 d_state) + dt_rank inner + inner hidden
    gated delta net   hidden (2 keys + 2 values + 2 v_heads) + values hidden
    Kimi delta        hidden (3 width + 2 dim + heads) + 2 dim width + width hidden
    linear attention  hidden 4 width + width hidden
    short conv        hidden 3 hidden + hidden hidden
    MLP, expert       3 hidden inner; 2 where it is not gated (Nemotron)
"""  # noqa: E501

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hsexp.memory.geometry import ModelShape
from hsexp.memory.weights import Experts, Weights
from hsexp.models.document import Document
from hsexp.models.families import dtype_bytes


@dataclass(frozen=True, kw_only=True)
class Body:
    """The layers of a model, without embedding and head."""

    token: int
    """Parameters that every token is multiplied with."""
    attention_width: int
    """Query heads times head size, summed over the attention layers."""
    experts: Experts | None = None
    shared_twice: int = 0
    """Of `token`: parameters that lie in memory once and that several layers use, counted for all
    of them but one."""


Counted = Callable[[Document, ModelShape], Body]


def read_weights(document: Document, count: Counted, shape: ModelShape) -> Weights:
    """The weights of a model.

    Args:
        count: of its family.
        shape: its states, which say how many layers of each kind it has.

    Raises:
        ConfigError: config.json lacks a field, or its weights are quantized.
    """
    if document.has("quantization_config"):
        raise document.refusal("quantization_config", "is there: quantized weights are not counted")
    body = count(document, shape)
    head = document.count("vocab_size") * document.count("hidden_size")
    of_experts = 0 if body.experts is None else body.experts.num * body.experts.parameters
    return Weights(
        num_parameters=body.token - body.shared_twice + of_experts + head * (2 - _tied(document)),
        token_parameters=body.token,
        head_parameters=head,
        experts=body.experts,
        attention_width=body.attention_width,
        dtype_bytes=2 if dtype_bytes(document) == 2 else 4,
    )


# -- families --------------------------------------------------------------------------------------


def falcon_h1(document: Document, shape: ModelShape) -> Body:
    layers = document.count("num_hidden_layers")
    inner = document.count("mamba_d_ssm", default=_expanded(document))
    token = _attention(document) + _mamba2(document, inner, document.count("mamba_n_heads"))
    return Body(
        token=layers * (token + _mlp(document, document.count("intermediate_size"))),
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def granite_4_h(document: Document, shape: ModelShape) -> Body:
    """Routed experts, if any, beside a shared MLP in every layer."""
    layers = document.count("num_hidden_layers")
    mixers = _mamba2_mixers(document, shape)
    shared = _mlp(document, document.count("shared_intermediate_size"))
    experts = None
    if document.has("num_local_experts") and document.number("num_local_experts"):
        experts = _experts(document, layers, document.count("intermediate_size"))
    return Body(
        token=mixers + layers * (shared + _router(document, experts)),
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def bamba(document: Document, shape: ModelShape) -> Body:
    layers = document.count("num_hidden_layers")
    mixers = _mamba2_mixers(document, shape)
    return Body(
        token=mixers + layers * _mlp(document, document.count("intermediate_size")),
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def nemotron_h(document: Document, shape: ModelShape) -> Body:
    """Mixers and MLPs are layers of their own, and an MLP has no gate."""
    kinds = document.layers("hybrid_override_pattern", "layers_block_type")
    inner = document.count("mamba_num_heads") * document.count("mamba_head_dim")
    groups, state = document.count("n_groups"), document.count("ssm_state_size")
    hidden = document.count("hidden_size")
    mamba = hidden * (2 * inner + 2 * groups * state + document.count("mamba_num_heads"))
    token = _mixers(shape, attention=_attention(document), recurrent=mamba + inner * hidden)
    dense = sum(kind in ("-", "mlp") for kind in kinds)
    if dense:
        token += dense * _mlp(document, document.count("intermediate_size"), gated=False)
    experts = None
    if routed := sum(kind in ("E", "moe") for kind in kinds):
        hidden = document.count("moe_latent_size", "hidden_size")
        experts = _experts(
            document, routed, document.count("moe_intermediate_size"), gated=False, hidden=hidden
        )
        if document.has("moe_latent_size"):
            token += routed * 2 * document.count("hidden_size") * hidden
        shared = document.count("moe_shared_expert_intermediate_size")
        token += routed * (_mlp(document, shared, gated=False) + _router(document, experts))
    return Body(
        token=token,
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def zamba2(document: Document, shape: ModelShape) -> Body:
    """Blocks of attention and MLP that the hybrid layers take turns with, each with its own
    adapters and its own projection."""
    hidden, inner = document.count("hidden_size"), document.count("intermediate_size")
    rank, hybrid = document.count("adapter_rank", default=128), shape.num_attention_layers
    width = _query_width(document, default_head=2 * hidden // document.count("num_attention_heads"))
    block = 3 * 2 * hidden * width + width * hidden + 3 * hidden * inner
    own = hidden * hidden + rank * (hidden + 2 * inner)
    if document.flag("use_shared_attention_adapter"):
        own += 3 * 2 * rank * 2 * hidden
    mamba = _mamba2(
        document,
        _expanded(document),
        document.count("n_mamba_heads"),
        groups=document.count("mamba_ngroups", default=1),
    )
    blocks = min(document.count("num_mem_blocks", default=1), hybrid)
    return Body(
        token=shape.num_recurrent_layers * mamba + hybrid * (block + own),
        shared_twice=(hybrid - blocks) * block,
        attention_width=hybrid * width,
    )


def jamba(document: Document, shape: ModelShape) -> Body:
    """Experts in some layers, an MLP of the same size in the others."""
    layers, hidden = document.count("num_hidden_layers"), document.count("hidden_size")
    inner, state = _expanded(document), document.count("mamba_d_state", default=16)
    rank = -(-hidden // 16)
    if document.text("mamba_dt_rank", "auto") != "auto":
        rank = document.count("mamba_dt_rank")
    mamba = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    period, offset = document.count("expert_layer_period"), document.number("expert_layer_offset")
    routed = sum(layer % period == offset for layer in range(layers))
    size = document.count("intermediate_size")
    experts = None
    if document.count("num_experts") > 1:
        experts = _experts(document, routed, size)
    dense = layers - routed if experts is not None else layers
    return Body(
        token=_mixers(shape, attention=_attention(document), recurrent=mamba)
        + dense * _mlp(document, size)
        + routed * _router(document, experts),
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def gated_delta_net(document: Document, shape: ModelShape) -> Body:
    """Qwen3-Next and Qwen3.5, whose attention is gated, and OLMo hybrid, whose is not."""
    hidden, layers = document.count("hidden_size"), document.count("num_hidden_layers")
    heads = document.count("linear_num_value_heads")
    keys = document.count("linear_num_key_heads") * document.count("linear_key_head_dim")
    values = heads * document.count("linear_value_head_dim")
    gated = document.text("model_type", "") != "olmo_hybrid"
    token = _mixers(
        shape,
        attention=_attention(document, gated=gated),
        recurrent=hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden,
    )
    experts = None
    if document.has("num_experts") and document.number("num_experts"):
        dense = document.indices("mlp_only_layers")
        step = document.count("decoder_sparse_step", default=1)
        routed = sum((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
        experts = _experts(document, routed, document.count("moe_intermediate_size"))
        shared = _mlp(document, document.count("shared_expert_intermediate_size"))
        token += routed * (shared + _router(document, experts))
        layers -= routed
    if layers:
        token += layers * _mlp(document, document.count("intermediate_size"))
    return Body(
        token=token,
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def kimi_linear(document: Document, shape: ModelShape) -> Body:
    """Kimi delta attention and MLA, with experts behind the first layers."""
    hidden, layers = document.count("hidden_size"), document.count("num_hidden_layers")
    linear = document.part("linear_attn_config")
    heads, dim = linear.count("num_heads"), linear.count("head_dim")
    width = heads * dim
    delta = hidden * (3 * width + 2 * dim + heads) + 2 * dim * width + width * hidden
    heads, latent = document.count("num_attention_heads"), document.count("kv_lora_rank")
    rotary, plain = document.count("qk_rope_head_dim"), document.count("qk_nope_head_dim")
    value = document.count("v_head_dim")
    mla = hidden * heads * (plain + rotary) + hidden * (latent + rotary)
    mla += latent * heads * (plain + value) + heads * value * hidden
    dense = document.number("first_k_dense_replace")
    experts = _experts(
        document,
        layers - dense,
        document.count("moe_intermediate_size"),
        num=("num_experts",),
        per_token=("num_experts_per_token", "num_experts_per_tok"),
    )
    shared = document.count("num_shared_experts", default=1)
    shared_mlp = _mlp(document, shared * document.count("moe_intermediate_size"))
    token = _mixers(shape, attention=mla, recurrent=delta)
    token += dense * _mlp(document, document.count("intermediate_size"))
    token += (layers - dense) * (shared_mlp + _router(document, experts))
    return Body(
        token=token,
        experts=experts,
        attention_width=shape.num_attention_layers * heads * (plain + rotary + value) // 2,
    )


def lfm2(document: Document, shape: ModelShape) -> Body:
    hidden, layers = document.count("hidden_size"), document.count("num_hidden_layers")
    token = _mixers(shape, attention=_attention(document), recurrent=4 * hidden * hidden)
    inner = document.count("block_ff_dim", "intermediate_size")
    experts = None
    if document.text("model_type", "") == "lfm2_moe":
        routed = layers - document.number("num_dense_layers")
        experts = _experts(document, routed, document.count("moe_intermediate_size"))
        token += routed * _router(document, experts)
        layers -= routed
    elif document.flag("block_auto_adjust_ff_dim", default=True):
        inner = _adjusted(document, inner)
    return Body(
        token=token + layers * _mlp(document, inner),
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


def minimax(document: Document, shape: ModelShape) -> Body:
    hidden, layers = document.count("hidden_size"), document.count("num_hidden_layers")
    experts = _experts(document, layers, document.count("intermediate_size"))
    return Body(
        token=_mixers(
            shape,
            attention=_attention(document),
            recurrent=5 * hidden * _query_width(document),
        )
        + layers * _router(document, experts),
        experts=experts,
        attention_width=shape.num_attention_layers * _query_width(document),
    )


# -- parts -----------------------------------------------------------------------------------------


def _mamba2_mixers(document: Document, shape: ModelShape) -> int:
    """Attention or Mamba2 in every layer."""
    return _mixers(
        shape,
        attention=_attention(document),
        recurrent=_mamba2(document, _expanded(document), document.count("mamba_n_heads")),
    )


def _mixers(shape: ModelShape, *, attention: int, recurrent: int) -> int:
    return shape.num_attention_layers * attention + shape.num_recurrent_layers * recurrent


def _query_width(document: Document, default_head: int | None = None) -> int:
    heads = document.count("num_attention_heads")
    head = default_head or document.count("hidden_size") // heads
    return heads * document.count("head_dim", "attention_head_dim", default=head)


def _attention(document: Document, *, gated: bool = False) -> int:
    hidden, query = document.count("hidden_size"), _query_width(document)
    heads = document.count("num_attention_heads")
    kv = query // heads * document.count("num_key_value_heads", "num_attention_heads")
    return hidden * (query * (2 if gated else 1) + 2 * kv) + query * hidden


def _expanded(document: Document) -> int:
    return document.count("mamba_expand", default=2) * document.count("hidden_size")


def _mamba2(document: Document, inner: int, heads: int, groups: int | None = None) -> int:
    hidden, state = document.count("hidden_size"), document.count("mamba_d_state")
    groups = groups or document.count("mamba_n_groups", default=1)
    return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden


def _mlp(document: Document, inner: int, *, gated: bool = True, hidden: int | None = None) -> int:
    return (3 if gated else 2) * (hidden or document.count("hidden_size")) * inner


def _experts(
    document: Document,
    layers: int,
    inner: int,
    *,
    gated: bool = True,
    hidden: int | None = None,
    num: Sequence[str] = ("num_local_experts", "num_experts", "n_routed_experts"),
    per_token: Sequence[str] = ("num_experts_per_tok",),
) -> Experts:
    return Experts(
        parameters=layers * _mlp(document, inner, gated=gated, hidden=hidden),
        num=document.count(*num),
        per_token=document.count(*per_token),
    )


def _router(document: Document, experts: Experts | None) -> int:
    """One row for each expert of a layer."""
    return 0 if experts is None else document.count("hidden_size") * experts.num


def _adjusted(document: Document, inner: int) -> int:
    """LFM2's inner width: two thirds, times a factor, rounded up to whole multiples."""
    inner = int(2 * inner / 3)
    if (factor := document.factor("block_ffn_dim_multiplier")) is None:
        return inner
    multiple = document.count("block_multiple_of", default=256)
    return multiple * -(-int(factor * inner) // multiple)


def _tied(document: Document) -> bool:
    """Whether head and embedding are one matrix."""
    default = document.text("model_type", "") in ("lfm2", "lfm2_moe", "zamba2")
    return document.flag("tie_word_embeddings", "tie_embedding", default=default)
