"""A whole decoder, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.spec.layer import LayerSpec
from plimsoll_runtime.models.spec.mixer import attention_of, owner_of
from plimsoll_runtime.models.spec.names import LLAMA, Names
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.streams import AltUp, TokenInputs


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
