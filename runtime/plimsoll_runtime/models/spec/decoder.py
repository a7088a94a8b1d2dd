"""A decoder and its layers, as a config describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.spec.attention import AttentionShape, LatentAttention, SelfAttention
from plimsoll_runtime.models.spec.feed_forward import FeedForward
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import Recurrent
from plimsoll_runtime.models.spec.tensor_names import LLAMA, Names


@dataclass(frozen=True, slots=True)
class ParallelMixer:
    """Attention and something recurrent, which read the same; what both give is added.

    Each is multiplied by a number of its own, and so is what attention reads.
    """

    attention: SelfAttention
    recurrent: Recurrent
    attention_scale: float = 1.0
    recurrent_scale: float = 1.0
    attention_input: float = 1.0


Mixer = SelfAttention | LatentAttention | Recurrent | ParallelMixer
"""One of these."""


def attention_of(mixer: Mixer | None) -> SelfAttention | LatentAttention | None:
    """What of it attends."""
    if isinstance(mixer, ParallelMixer):
        return mixer.attention
    return mixer if isinstance(mixer, SelfAttention | LatentAttention) else None


def owner_of(mixer: Mixer | None) -> int | None:
    """The number of the layer whose keys and values it attends to; None: its own, or it does not attend."""
    return mixer.shares if isinstance(mixer, SelfAttention) else None


Residual = Literal["sequential", "normed", "parallel", "parallel-one-norm"]
"""Whether the MLP reads what attention has been added to, or what attention reads; then with a norm of its own or not.

`normed`: sums are normed, and go on so.
"""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x + mixer(norm(x)), then x + mlp(norm(x)); a sequential layer may have one of them alone.

    - `norm`: the kind of all norms over hidden states.
    - `before`, `after`: whether there is one before the mixer and the MLP, and one of what they give.
    - `bare_mixer`: there is none before the mixer.
    - `scale`: what both add is multiplied by it.
    - `laurel`: what the mixer reads, plus a product of it of this rank, is added beside what the mixer gives, and the
      sum divided by the root of 2. Only in a sequential layer with both.
    - `scalar`: what comes of it all is multiplied by a number of the files.
    """

    mixer: Mixer | None
    mlp: FeedForward | None
    norm: Norm
    before: bool = True
    after: bool = False
    residual: Residual = "sequential"
    scale: float = 1.0
    laurel: int | None = None
    scalar: bool = False
    bare_mixer: bool = False


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


@dataclass(frozen=True, slots=True)
class Embedding:
    """A row of a table for each token.

    - `scale`: they are multiplied by it, rounded to the dtype that the model runs in.
    - `positions`: rows of a table of positions that is added; the first position's row is `first_position`.
    - `texts`: rows of a table that is added, one for each of the texts that a prompt may hold; then there is no scale.
    - `norm`: of what comes of it.
    """

    scale: float | None = None
    positions: int | None = None
    first_position: int = 0
    texts: int = 0
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Hidden states to logits, which are multiplied by `scale`, and with a `softcap` c become c x tanh(logit / c)."""

    tied: bool = False
    bias: bool = False
    softcap: float | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer, or an encoder-only one, whose layers see `whole` prompts.

    Whatever computes it is made from its program (`models/program.py`).

    `is_part`: its files are of a larger model, whose other tensors are not read. `inputs`, `altup`: what layers have
    beside one row of hidden states.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_positions: int
    final_norm: Norm | None
    embedding: Embedding = Embedding()
    head: Head = Head()
    names: Names = LLAMA
    is_part: bool = False
    inputs: TokenInputs | None = None
    altup: AltUp | None = None

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    @property
    def attention(self) -> tuple[AttentionShape, ...]:
        """One a layer that attends to keys and values of its own."""
        attends = (attention_of(layer.mixer) for layer in self.layers)
        return tuple(mixer.shape for mixer in attends if mixer is not None and owner_of(mixer) is None)
