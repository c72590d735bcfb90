"""The families of hybrid models that are known here, each said once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hsexp.models import families, weights
from hsexp.models.document import Document
from hsexp.models.weights import Counted


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a config.json of the family is read."""

    shape: Callable[[Document], dict[str, Any]]
    """Fields of `Mamba2Shape` or `SizedShape`."""
    weights: Counted
    """What a token is multiplied with."""


_DELTA_NET = Family(shape=families.gated_delta_net, weights=weights.gated_delta_net)
_LFM2 = Family(shape=families.lfm2, weights=weights.lfm2)
_MINIMAX = Family(shape=families.minimax, weights=weights.minimax)

FAMILIES: dict[str, Family] = {
    "falcon_h1": Family(shape=families.falcon_h1, weights=weights.falcon_h1),
    "granitemoehybrid": Family(shape=families.granite_4_h, weights=weights.granite_4_h),
    "bamba": Family(shape=families.bamba, weights=weights.bamba),
    "nemotron_h": Family(shape=families.nemotron_h, weights=weights.nemotron_h),
    "zamba2": Family(shape=families.zamba2, weights=weights.zamba2),
    "jamba": Family(shape=families.jamba, weights=weights.jamba),
    "qwen3_next": _DELTA_NET,
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": _DELTA_NET,
    "olmo_hybrid": _DELTA_NET,
    "kimi_linear": Family(shape=families.kimi_linear, weights=weights.kimi_linear),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "MiniMaxText01": _MINIMAX,
}
"""By `model_type`."""


def is_delta_net(model_type: str) -> bool:
    """Whether recurrent layers of the family are gated delta nets."""
    return FAMILIES.get(model_type) is _DELTA_NET
