"""Rotary position embedding: frequencies of each kind, and tables of cosines and sines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plimsoll_kernels.rotary.op import rotary
from plimsoll_runtime.models.spec.attention import RopeSpec


def inverse_frequencies(rope: RopeSpec) -> Tensor:
    """Return the radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, rope.head_dim, 2, dtype=torch.int64).float() / rope.head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind in ("frequency_factors", "longrope"):
        return plain / torch.tensor(rope.frequency_factors)
    if rope.kind == "proportional":
        turning = torch.arange(len(plain)) < int(rope.share * rope.head_dim // 2)
        return plain * turning / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope)
    return plain


class RopeTable:
    """Computes cosines and sines of one rope for any positions. Layers with the same rope share a table."""

    def __init__(self, rope: RopeSpec, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope).to(device)
        self._factor = rope.attention_factor

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, head_dim / 2] for positions int64 [T], computed in float32 and rounded to `dtype`."""
        angles = positions.float()[:, None] * self._frequencies
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        return cos.to(dtype), sin.to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor, *, pairs: bool = False) -> Tensor:
    """Rotate the first D dimensions of heads [T, H, at least D] by tables [T, D / 2].

    Dimensions i and i + D / 2 form a pair; with `pairs`, dimensions 2i and 2i + 1.
    """
    turned = 2 * cos.shape[-1]
    if turned < heads.shape[-1]:
        first, rest = torch.split(heads, [turned, heads.shape[-1] - turned], dim=-1)
        return torch.cat((rotate(first, cos, sin, pairs=pairs), rest), dim=-1)
    if heads.is_cuda and not pairs:
        return rotary(heads, cos, sin)
    cos, sin = cos[:, None], sin[:, None]
    first, second = (heads[..., 0::2], heads[..., 1::2]) if pairs else heads.chunk(2, dim=-1)
    halves = (first * cos - second * sin, second * cos + first * sin)
    return torch.stack(halves, dim=-1).flatten(-2) if pairs else torch.cat(halves, dim=-1)


def _llama3(plain: Tensor, rope: RopeSpec) -> Tensor:
    """Return the frequencies: long wavelengths' divided by the factor, short ones' unchanged, a blend in between."""
    wavelengths = 2 * math.pi / plain
    longest = rope.original_max_positions / rope.low_freq_factor
    shortest = rope.original_max_positions / rope.high_freq_factor
    share = rope.original_max_positions / wavelengths - rope.low_freq_factor
    share = share / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelengths > longest, plain / rope.factor, plain)
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, scaled)


def _yarn(plain: Tensor, rope: RopeSpec) -> Tensor:
    """Divide frequencies of fewer than `beta_slow` turns over the original context by the factor, keep those of more
    than `beta_fast`, and blend linearly between.
    """
    low, high = (_turns_dimension(turns, rope) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    ramp = (torch.arange(rope.head_dim // 2).float() - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    return plain / rope.factor * interpolated + plain * (1 - interpolated)


def _turns_dimension(turns: float, rope: RopeSpec) -> float:
    """Return the dimension whose angle makes this many turns over the original context."""
    return rope.head_dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
