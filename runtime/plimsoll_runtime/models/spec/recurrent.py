"""Recurrent layers and the states that they keep, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Mamba:
    """A convolution, then a selective scan with `state` numbers for each of `inner` columns (Gu and Dao, 2023).

    Time steps are products of `rank` numbers. `norm`: of those, of B and of C.
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
    """Heads of Mamba 2, each with a state [head_dim, state]; those of a group share what they write and read by."""

    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def mixed(self) -> int:
        """Width of what is convolved: x, B and C."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A convolution, then a scan with one decay for each head (Dao and Gu, 2024).

    - `eps`: of the norm over each group of what comes of it and its gate; None: there is a gate alone.
    - `gate_after`: that norm does not see the gate.
    - `limits`: of time steps.
    - `multipliers`: of what is read, and of gate, x, B, C and time steps (none: all are 1).
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
    """Heads of the gated delta rule: each of values has a state [key_dim, value_dim].

    Those that share a head of keys lie side by side; `in_turns`: the first of each head of keys, then the second.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    in_turns: bool = False

    @property
    def keys(self) -> int:
        """Width of all heads of keys, and of queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all heads of values."""
        return self.value_heads * self.value_dim

    @property
    def mixed(self) -> int:
        """Width of what is convolved: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """A convolution, then the gated delta rule (Yang et al., 2024), a norm over each head, and a gate.

    `by_key_head`: the files have queries, keys, values and gates of one head of keys after the other, and alike what
    says how much is written and forgotten. `gates_apart`: of these only the latter, and gates by themselves.
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
    """A convolution, then a recurrence with gates of `heads` blocks, opened by another branch (De et al., 2024)."""

    inner: int
    heads: int
    taps: int
    activation: Activation


Recurrent = Mamba | Mamba2 | GatedDelta | ShortConvolution | Griffin
"""One of these."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One tensor of `shape` a sequence, in the dtype of the run or, where it is `wide`, in float32 in every run."""

    shape: tuple[int, ...]
    wide: bool = False

    def nbytes(self, element_bytes: int) -> int:
        """Bytes a sequence, in a run whose elements have so many."""
        return prod(self.shape) * (4 if self.wide else element_bytes)


@dataclass(frozen=True, slots=True)
class OwnCache:
    """Bytes in a run of such elements: of a sequence whatever its length, and of each of its tokens."""

    element_bytes: int
    sequence: int
    token: int
