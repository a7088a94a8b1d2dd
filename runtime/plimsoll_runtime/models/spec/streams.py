"""What layers have beside one row of hidden states, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.activation.reference import Activation
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Each token has `width` numbers for each layer, of a table of `vocab` tokens and of a product of its embedding.

    A layer lets through what its states open, by the activation, and adds a product of that, normed, behind the MLP.
    Tokens beyond the table have what its first has. `norm`: of what the product gives, layer by layer, and of what a
    layer adds.
    """

    vocab: int
    width: int
    norm: Norm
    activation: Activation


@dataclass(frozen=True, slots=True)
class AltUp:
    """Hidden states are in several streams, of which layers compute the `active` one (Baykal et al., 2023).

    A layer predicts all of them of all, and corrects them by what it made of the active one. Token inputs are added to
    all but the first. The active one opens them, multiplied by a weight for each column before if it is `scaled`.
    `norm`: of the states that say how streams are mixed.
    """

    streams: int
    active: int
    norm: Norm
    scaled: bool = True
