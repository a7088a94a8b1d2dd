"""MLPs and mixtures of a layer, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_kernels.activation.kinds import Activation

Scores = Literal["softmax", "sigmoid"]
"""Over all experts together (softmax), or of each by itself (sigmoid)."""


@dataclass(frozen=True, slots=True)
class TopK:
    """Routing to the experts with the highest scores, weighted by these (Shazeer et al., 2017).

    - `corrected`: a bias of the files is added to scores for the choice of experts, but not for their weights
      (DeepSeek-AI, 2024).
    - `groups`: number of equal groups of experts. The score of a group is the sum of its `best` highest scores; only
      experts of the `open_groups` groups with the highest scores are eligible.
    - `renormalised`: weights are divided by their sum (at least `least`). With softmax this equals a softmax over the
      chosen experts' logits.
    - `scale`: factor of the weights; `scaled_each`: each expert also has a factor in the files.
    """

    scores: Scores = "softmax"
    renormalised: bool = True
    corrected: bool = False
    groups: int = 1
    open_groups: int = 1
    best: int = 2
    least: float = 0.0
    scale: float = 1.0
    scaled_each: bool = False


@dataclass(frozen=True, slots=True)
class SparseMixer:
    """Routing that chooses experts one after the other (Liu et al., 2024).

    The weight of each is its share of a softmax over the remaining logits. Logits of earlier choices are excluded, and
    those below the highest by more than 2 `jitter` times the larger of the highest and their own absolute value.
    """

    jitter: float


Routing = TopK | SparseMixer
"""The routing of a mixture."""


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)) (Shazeer, 2020).

    `gate_scale` is a factor of the activation's input, `scale` of the result. `sparsity`: the share of a token's gates
    that is cut to 0 if they are normally distributed; the activation gets the excess over the threshold (0: no cut).
    """

    inner: int
    activation: Activation = "silu"
    bias: bool = False
    gate_scale: float = 1.0
    scale: float = 1.0
    sparsity: float = 0.0


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """down(activation(up(x)))."""

    inner: int
    activation: Activation
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gate x sigmoid(alpha x gate) x (up + 1), with the gate clamped to at most `limit` and up to [-limit, limit]
    (gpt-oss).
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Projections of experts' inputs to `width` columns, and of their results back to the states' columns."""

    width: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """An MLP of `inner` columns for each expert; the weighted sum of `chosen` experts for each token.

    - `clamped`: replaces the activation of experts' gates.
    - `bias`, `router_bias`: whether experts and the router have biases.
    - `weighs_inputs`: weights multiply experts' inputs instead of results.
    - `plain`: experts have no gates.
    - `narrowed`: experts work on narrower states.
    - `shared`: an MLP for every token, whose result is added.
    - `shared_gated`: that result is multiplied by a sigmoid gate, one number for each token.
    """

    experts: int
    chosen: int
    inner: int
    routing: Routing
    activation: Activation = "silu"
    shared: GatedMlp | PlainMlp | None = None
    shared_gated: bool = False
    clamped: ClampedGate | None = None
    bias: bool = False
    router_bias: bool = False
    weighs_inputs: bool = False
    plain: bool = False
    narrowed: Bottleneck | None = None


@dataclass(frozen=True, slots=True)
class MixtureBeside:
    """A gated MLP and a mixture in parallel, whose normalised results are added (Gemma 4).

    The mixture reads the layer's states through its own norm, and the router through another one, multiplied by hidden
    ** -0.5.
    """

    mlp: GatedMlp
    mixture: Mixture


FeedForward = GatedMlp | PlainMlp | Mixture | MixtureBeside
"""The MLP or mixture of a layer."""
