"""Seeded weights as wide as a real model's: the configuration that an engine reads.

A folder holds config.json and nothing else. The engine makes the weights on its device
(`hsexp.engine.seeded_loader`), so that no copy of them is on the host or on a disk.
"""

import json
from pathlib import Path
from typing import Any

from hsexp.config.base import ConfigError
from hsexp.engine.mini import kept_folder, shared_fields
from hsexp.memory.geometry import ModelConfig, ModelShape
from hsexp.memory.weights import SeededWidth
from hsexp.plan.cells import content_key

LOAD_FORMAT = "hsexp_seeded"
"""vLLM's `load_format` of such a folder."""


def load_arguments(checkpoint: str | None, width: SeededWidth | None) -> dict[str, str]:
    """What an engine is told, beside the folder, about weights that it makes itself."""
    return {} if checkpoint is not None or width is None else {"load_format": LOAD_FORMAT}


def config_folder(shape: ModelShape, width: SeededWidth) -> Path:
    """The folder of config.json, in the user's cache.

    Raises:
        ConfigError: the shape is not a Falcon-H1's, or the width does not fit it.
    """
    fields = config_fields(shape, width)
    return kept_folder(
        f"{shape.name}-{content_key(fields)}",
        lambda half: _write(half / "config.json", fields),
    )


def config_fields(shape: ModelShape, width: SeededWidth) -> dict[str, Any]:
    """The fields of config.json.

    Raises:
        ConfigError: as `config_folder`.
    """
    if not isinstance(shape, ModelConfig) or (
        shape.num_recurrent_layers != shape.num_attention_layers
    ):
        raise ConfigError(
            f"model {shape.name}: seeded_width is that of a Falcon-H1, which has as many recurrent "
            "as attention layers"
        )
    if width.query_heads % shape.num_kv_heads:
        raise ConfigError(
            f"model {shape.name}: seeded_width.query_heads must be a multiple of num_kv_heads "
            f"{shape.num_kv_heads}, got {width.query_heads}"
        )
    return shared_fields(shape) | {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "torch_dtype": "bfloat16" if shape.dtype_bytes == 2 else "float32",
        "hidden_size": width.hidden,
        "intermediate_size": width.intermediate,
        "num_hidden_layers": shape.num_attention_layers,
        "num_attention_heads": width.query_heads,
        "head_dim": shape.head_dim,
        "mamba_d_ssm": shape.ssm_heads * shape.ssm_head_dim,
        "mamba_chunk_size": width.scan_chunk,
        "vocab_size": width.vocabulary,
    }


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2), encoding="utf-8")
