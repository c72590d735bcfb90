"""New states of gated delta net that a step's decode kernel would read.

vLLM counts a request with one scheduled token as a decode, also where that token is its first: the
kernel of gated delta net then continues whatever the state's page held before. A state that has
seen no token is cleared before such a step. (Mamba2's metadata counts the token as a prefill, which
starts from zeros.)
"""

from typing import Any

from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum


def clear_fresh_states(
    scheduler_output: Any,
    kv_cache_config: Any,
    state_positions: dict[str, int],
    requests: dict[str, Any],
    layers: dict[str, Any],
) -> None:
    """Clear the states of requests whose first step has one token.

    Args:
        state_positions: by request, where this step's state is in its table.
        requests: vLLM's records of the requests.
        layers: by name.
    """
    fresh = [
        request_id
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items()
        if num_tokens == 1 and requests[request_id].num_computed_tokens == 0
    ]
    if not fresh:
        return
    for group_id, group in enumerate(kv_cache_config.kv_cache_groups):
        kind = getattr(group.kv_cache_spec, "mamba_type", None)
        if kind != MambaAttentionBackendEnum.GDN_ATTN:
            continue
        pages = [requests[key].block_ids[group_id][state_positions[key]] for key in fresh]
        for name in group.layer_names:
            for states in layers[name].kv_cache:
                states[pages] = 0
