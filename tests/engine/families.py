"""Small checkpoints of other hybrid families, whose last groups lack layers.

    bamba       5 Mamba2 and 4 attention layers: groups of 2, 2, 1 and no recurrent layers
    nemotron_h  5 and 2, between layers without states: groups of 3 and 2
    zamba2      5 and 2, attention weights shared: groups of 3 and 2
    qwen3_next  5 layers of gated delta net and 2 of attention: groups of 3 and 2

Bamba has no class in vLLM 0.27.1; its proportions are a Granite-4-H's here. In fp32 all Mamba2
states but Nemotron-H's convolution have the sizes of `tiny_granite`.
"""

from pathlib import Path
from typing import Any

from small_models import VOCABULARY, save_model, tiny_granite

from hsexp.engine.mini import seed_weights

HIDDEN = 128
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_COMMON: dict[str, Any] = _TOKENS | {"vocab_size": VOCABULARY, "max_position_embeddings": 2048}


def save_family(name: str, folder: Path) -> str:
    """Write the family's checkpoint; returns its folder."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(1)  # for vectors, which `seed_weights` leaves as they are
        return _SAVED[name](folder)


def _bamba(folder: Path) -> str:
    shape = tiny_granite(4).model_copy(
        update={"name": "bamba", "num_attention_layers": 4, "num_recurrent_layers": 5}
    )
    return save_model(folder, shape, dtype="float32")


def _nemotron_h(folder: Path) -> str:
    from transformers import NemotronHConfig, NemotronHForCausalLM

    config = NemotronHConfig(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        hybrid_override_pattern="M-MM*-M*M-",
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=64,
        n_groups=2,
        conv_kernel=4,
        chunk_size=32,
        **_COMMON,
    )
    return _save(NemotronHForCausalLM(config), folder, dtype="float32")


def _zamba2(folder: Path) -> str:
    from transformers import Zamba2Config, Zamba2ForCausalLM

    kinds = ["mamba", "hybrid", "mamba", "hybrid", "mamba"]
    config = Zamba2Config(
        hidden_size=HIDDEN // 2,
        intermediate_size=HIDDEN,
        num_hidden_layers=len(kinds),
        layers_block_type=kinds,
        num_attention_heads=2,
        num_mem_blocks=1,
        use_shared_attention_adapter=True,
        adapter_rank=8,
        use_mem_rope=True,
        mamba_expand=4,
        n_mamba_heads=8,
        mamba_d_state=64,
        mamba_ngroups=1,
        chunk_size=32,
        **_COMMON,
    )
    return _save(Zamba2ForCausalLM(config), folder, dtype="float32")


def _qwen3_next(folder: Path) -> str:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    kinds = ["linear_attention"] * 7
    kinds[2] = kinds[5] = "full_attention"
    config = Qwen3NextConfig(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=len(kinds),
        layer_types=kinds,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        # vLLM wants a layer with experts.
        mlp_only_layers=list(range(1, len(kinds))),
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        **_COMMON,
    )
    return _save(Qwen3NextForCausalLM(config), folder, dtype="bfloat16")


_SAVED = {"bamba": _bamba, "nemotron_h": _nemotron_h, "zamba2": _zamba2, "qwen3_next": _qwen3_next}


def _save(model: Any, folder: Path, *, dtype: str) -> str:
    import torch

    seed_weights(model, seed=1)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return str(folder)
