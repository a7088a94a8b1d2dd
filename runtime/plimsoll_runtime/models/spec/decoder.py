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
    """Attention and a recurrent mixer with the same input, whose results are added.

    Each result is scaled by its factor, and so is attention's input.
    """

    attention: SelfAttention
    recurrent: Recurrent
    attention_scale: float = 1.0
    recurrent_scale: float = 1.0
    attention_input: float = 1.0


Mixer = SelfAttention | LatentAttention | Recurrent | ParallelMixer
"""The mixer of a layer."""


def attention_of(mixer: Mixer | None) -> SelfAttention | LatentAttention | None:
    """Return the attention of a mixer, or None."""
    if isinstance(mixer, ParallelMixer):
        return mixer.attention
    return mixer if isinstance(mixer, SelfAttention | LatentAttention) else None


def owner_of(mixer: Mixer | None) -> int | None:
    """Return the number of the layer whose keys and values a mixer uses; None if it has its own or no attention."""
    return mixer.shares if isinstance(mixer, SelfAttention) else None


Residual = Literal["sequential", "normed", "parallel", "parallel-one-norm"]
"""How mixer and MLP are connected.

- `sequential`: the MLP reads the sum of the mixer's result and the states.
- `normed`: like sequential, but each sum is normalised and replaces the states.
- `parallel`: both read the states, through separate norms; `parallel-one-norm`: through the same norm.
"""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """x + mixer(norm(x)), then x + mlp(norm(x)); a sequential layer may lack one of them.

    - `norm`: the kind of all norms over hidden states.
    - `before`, `after`: whether there are norms before mixer and MLP, and after them.
    - `bare_mixer`: there is no norm before the mixer.
    - `scale`: factor of both results.
    - `laurel`: rank of LAuReL: the mixer's input plus its low-rank product is added to the mixer's result, and the sum
      divided by the root of 2. Only in a sequential layer with both parts.
    - `scalar`: the layer's states are multiplied by a number of the files.
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
    """Per-layer inputs: `width` numbers for each token and layer, from a table of `vocab` rows and from the embedding.

    After its MLP, a layer multiplies them by a gate computed from its states, projects the product to the hidden size,
    normalises it and adds it to the states. Tokens beyond the table use its first row. `norm` applies to each layer's
    projection of the embedding, and to the added value.
    """

    vocab: int
    width: int
    norm: Norm
    activation: Activation


@dataclass(frozen=True, slots=True)
class AltUp:
    """Several streams of hidden states, of which layers compute the `active` one (Baykal et al., 2023).

    A layer predicts each stream as a sum of all, computes the active one, and corrects all by its change. The active
    stream (with a weight for each column if `scaled`) gates per-layer inputs, which are added to all streams except the
    first. `norm` applies to the states from which mixing weights are computed.
    """

    streams: int
    active: int
    norm: Norm
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class Embedding:
    """Embedding of tokens.

    - `scale`: factor of the rows, rounded to the run's dtype.
    - `positions`: rows of a table of position embeddings; `first_position` is the row of the first position.
    - `texts`: rows of a table of token-type embeddings, one for each text of a prompt; not combined with a scale.
    - `norm`: norm of the sum.
    """

    scale: float | None = None
    positions: int | None = None
    first_position: int = 0
    texts: int = 0
    norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """Logits of hidden states, multiplied by `scale`; a `softcap` c turns them into c x tanh(logit / c)."""

    tied: bool = False
    bias: bool = False
    softcap: float | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer, or an encoder (with `whole` attention).

    Executors run its program (`models/program.py`).

    `is_part`: the files are of a larger model, whose other tensors are not read. `inputs`, `altup`: per-layer inputs
    and streams of hidden states.
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
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def attention(self) -> tuple[AttentionShape, ...]:
        """Shapes of the layers with their own keys and values."""
        attends = (attention_of(layer.mixer) for layer in self.layers)
        return tuple(mixer.shape for mixer in attends if mixer is not None and owner_of(mixer) is None)
