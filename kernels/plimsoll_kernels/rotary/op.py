"""The rotation: checks arguments, then runs kernel or reference."""

from __future__ import annotations

from torch import Tensor

from plimsoll_kernels.dispatch import Implementation, check_floats, check_shape, use_triton
from plimsoll_kernels.rotary.reference import rotary_reference


def rotary(heads: Tensor, cos: Tensor, sin: Tensor, *, implementation: Implementation = "auto") -> Tensor:
    """Rotate queries or keys: dimension i is paired with dimension i + R / 2 (GPT-NeoX's halves).

    heads `[T, H, D]`, cos and sin `[T, R / 2]` of any float dtype, R <= D; dimensions from R on are copied. Returns a
    new contiguous `[T, H, D]`. Raises ValueError for wrong shapes and dtypes.
    """
    check_floats(heads=heads)
    check_floats(cos=cos, sin=sin)
    if heads.dim() != 3 or cos.dim() != 2 or not 0 < 2 * cos.shape[1] <= heads.shape[2]:
        raise ValueError(
            f"heads {list(heads.shape)} and cos {list(cos.shape)} do not match: expected [T, H, D] and "
            "[T, R / 2] with 0 < R <= D"
        )
    check_shape("cos", cos, heads.shape[0], cos.shape[1])
    check_shape("sin", sin, *cos.shape)
    if cos.device != heads.device:
        raise ValueError(f"cos is on {cos.device}, but heads is on {heads.device}")
    if not use_triton(implementation, heads):
        return rotary_reference(heads, cos, sin)
    from plimsoll_kernels.rotary.kernel import launch_rotary

    return launch_rotary(heads, cos.contiguous(), sin.contiguous())
