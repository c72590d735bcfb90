"""Stands for vLLM's compiled operations where there are none: plain PyTorch in their place.

Only what a Falcon-H1 with Triton attention calls. An operation that is missing raises where it is
called, by its name.
"""

import torch

_LIBRARY = torch.library.Library("_C", "FRAGMENT")


def _operation(schema: str):
    def register(function):
        _LIBRARY.define(schema)
        _LIBRARY.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register


@_operation("rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()")
def rms_norm(result, input, weight, epsilon):
    x = input.float()
    x = (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)).to(input.dtype)
    result.copy_(x if weight is None else x * weight)


@_operation(
    "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()"
)
def fused_add_rms_norm(input, residual, weight, epsilon):
    residual.add_(input)
    rms_norm(input, residual, weight, epsilon)


@_operation("silu_and_mul(Tensor! result, Tensor input) -> ()")
def silu_and_mul(result, input):
    gate, up = input.chunk(2, dim=-1)
    torch.mul(torch.nn.functional.silu(gate), up, out=result)


@_operation(
    "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size,"
    " Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()"
)
def rotary_embedding(
    positions, query, key, head_size, cos_sin_cache, is_neox, rope_dim_offset=0, inverse=False
):
    if not is_neox or rope_dim_offset or inverse:
        raise NotImplementedError("rotary_embedding: only the halves of whole heads are turned")
    cos, sin = cos_sin_cache[positions.flatten()].float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1]
    for rows in (query, key):
        if rows is None:
            continue
        heads = rows.view(cos.shape[0], -1, head_size)
        first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
        turned = first * cos - second * sin, second * cos + first * sin  # before either is written
        heads[..., :half], heads[..., half : 2 * half] = (part.to(rows.dtype) for part in turned)


@_operation("weak_ref_tensor(Tensor(a) input) -> Tensor(a)")
def weak_ref_tensor(input):
    """A strong reference: a graph keeps its outputs, and takes that much more memory."""
    return input


def _unsupported(capability):
    return False


# Asked as modules are imported: whether quantized products run here.
for _name in (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
):
    _operation(f"{_name}(int capability) -> bool")(_unsupported)
