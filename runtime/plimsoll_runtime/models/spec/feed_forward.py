"""MLPs and mixtures of a layer, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_kernels.activation.kinds import Activation

Scores = Literal["softmax", "sigmoid"]
"""Over all experts together, or of each by itself."""


@dataclass(frozen=True, slots=True)
class TopK:
    """Experts with the highest scores compute a token and weigh what they score (Shazeer et al., 2017).

    - `corrected`: a bias of the files is added to the scores where experts are chosen, and not where they are weighed
      (DeepSeek-AI, 2024).
    - `groups`: experts are in so many groups of one size. The `open_groups` of them whose `best` experts together score
      most are open, and the experts of the others are chosen by no token.
    - `renormalised`: weights are divided by their sum, or by `least` where that is more. With softmax this is the same
      as a softmax over the chosen experts' logits alone.
    - `scale`: weights are multiplied by it in the end; `scaled_each`: each by its expert's number of the files.
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
    """Experts are chosen one after the other (Liu et al., 2024).

    Each weighs its share of a softmax over the logits that are left, without those of earlier ones and without those
    that are below the highest by more than 2 `jitter` of it, or of themselves where they are larger in size.
    """

    jitter: float


Routing = TopK | SparseMixer
"""One of these."""


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up in one product (Shazeer, 2020).

    `gate_scale` multiplies what the gate's activation takes, and `scale` what comes of it all. `sparsity`: the share of
    a token's gates that is cut to 0, if they are normally distributed; the activation takes by how much the others
    exceed the threshold (0: nothing is cut, and it takes gates as they are).
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
    """gate x sigmoid(alpha x gate) x (up + 1), the gate cut to at most `limit` and up to [-limit, limit]: gpt-oss's."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One product makes the states that experts read `width` wide, another makes what they give as wide as states."""

    width: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """An MLP of `inner` for each expert, of which `chosen` compute a token: the sum of what they give, weighed.

    - `clamped`: how experts' gates open instead of by the activation.
    - `bias`, `router_bias`: whether experts and the router have biases.
    - `weighs_inputs`: what experts compute is weighed, and not what they give.
    - `plain`: experts have no gates.
    - `narrowed`: experts read less than the states.
    - `shared`: another MLP that computes every token; what it gives is added.
    - `shared_gated`: that is multiplied by the sigmoid of one number, a product of its own, before it is added.
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
    """A gated MLP and a mixture, what each of them gives normed and added (Gemma 4).

    The mixture reads the layer's states through a norm of its own, and its router through another, multiplied by
    hidden ** -0.5.
    """

    mlp: GatedMlp
    mixture: Mixture


FeedForward = GatedMlp | PlainMlp | Mixture | MixtureBeside
"""One of these."""
