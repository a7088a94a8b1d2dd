"""Recurrent layers and their states, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Mamba:
    """A convolution over `taps` tokens, then a selective scan with `state` numbers for each of `inner` columns (Gu and
    Dao, 2023).

    Time steps are computed from `rank` numbers. `norm` applies to these, to B and to C.
    """

    inner: int
    state: int
    rank: int
    taps: int
    activation: Activation = "silu"
    bias: bool = False
    conv_bias: bool = True
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class DualShape:
    """Heads of Mamba 2, each with a state [head_dim, state]. Heads of a group share B and C."""

    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def inner(self) -> int:
        """Columns of all heads together."""
        return self.heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Columns of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A convolution over `taps` tokens, then a scan with one decay for each head (Dao and Gu, 2024).

    - `eps`: of the norm over each group of the gated result; None: there is only a gate.
    - `gate_after`: the gate is applied after the norm.
    - `limits`: of time steps.
    - `multipliers`: factors of gate, x, B, C and time steps (None: all 1); `input_multiplier`: factor of the input.
    """

    shape: DualShape
    taps: int
    eps: float | None
    activation: Activation = "silu"
    bias: bool = False
    output_bias: bool = False
    conv_bias: bool = True
    gate_after: bool = False
    limits: tuple[float, float] = (0.0, inf)
    multipliers: tuple[float, float, float, float, float] | None = None
    input_multiplier: float = 1.0


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Heads of the gated delta rule. Each value head has a state [key_dim, value_dim].

    Value heads that share a key head are adjacent; `in_turns`: they alternate (first the first of each key head, then
    the second).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    in_turns: bool = False

    @property
    def keys(self) -> int:
        """Columns of all key heads, and of all query heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Columns of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def mixed(self) -> int:
        """Columns of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """A convolution over `taps` tokens, then the gated delta rule (Yang et al., 2024), a norm over each head, and a
    gate.

    `by_key_head`: the files store queries, keys, values and gates of one key head after the other, and in the same way
    write strengths and decays. `gates_apart`: only write strengths and decays are stored in that way; gates are a
    separate tensor.
    """

    shape: DeltaShape
    taps: int
    eps: float
    activation: Activation = "silu"
    by_key_head: bool = False
    gates_apart: bool = False


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A convolution over `taps` tokens between two gates (Liquid AI's LFM2)."""

    inner: int
    taps: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Griffin:
    """A convolution over `taps` tokens, then a recurrence with gates of `heads` blocks, gated by another branch (De et
    al., 2024).
    """

    inner: int
    heads: int
    taps: int
    activation: Activation


Recurrent = Mamba | Mamba2 | GatedDelta | ShortConvolution | Griffin
"""The recurrent mixers."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """A tensor of `shape` for each sequence, in the run's dtype, or in float32 if `wide`."""

    shape: tuple[int, ...]
    wide: bool = False

    def nbytes(self, element_bytes: int) -> int:
        """Return the bytes for each sequence in a run with elements of `element_bytes`."""
        return prod(self.shape) * (4 if self.wide else element_bytes)


@dataclass(frozen=True, slots=True)
class OwnCache:
    """Size of a cache that the decoder keeps itself, in a run with elements of `element_bytes`: bytes for each
    sequence, and for each of its tokens.
    """

    element_bytes: int
    sequence: int
    token: int
