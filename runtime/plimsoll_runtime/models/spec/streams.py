"""What layers have beside one row of hidden states, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """Each token has `width` numbers for each layer: those of a table of `vocab` rows, and a product of its embedding.

    Behind its MLP a layer multiplies them by a gate, which the activation opens by the layer's states; a product of
    that, normed, is added to the states. Tokens beyond the table have its first row. `norm`: of what the product of the
    embedding gives, layer by layer, and of what a layer adds.
    """

    vocab: int
    width: int
    norm: Norm
    activation: Activation


@dataclass(frozen=True, slots=True)
class AltUp:
    """Hidden states are in several streams, of which layers compute the `active` one (Baykal et al., 2023).

    A layer predicts each stream as a sum of all, computes the active one, and corrects all of them by what it changed
    there. Inputs of tokens are gated by the active stream, whose columns are multiplied by a weight each before that if
    it is `scaled`, and are added to all streams but the first. `norm`: of the states that say how streams are mixed.
    """

    streams: int
    active: int
    norm: Norm
    scaled: bool = True
