"""What mixes tokens with each other in a layer, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.models.spec.attention import LatentAttention, SelfAttention
from plimsoll_runtime.models.spec.recurrent import Recurrent


@dataclass(frozen=True, slots=True)
class Beside:
    """Attention and something recurrent, which read the same; what both give is added.

    Each is multiplied by a number of its own, and so is what attention reads.
    """

    attention: SelfAttention
    recurrent: Recurrent
    attention_scale: float = 1.0
    recurrent_scale: float = 1.0
    attention_input: float = 1.0


Mixer = SelfAttention | LatentAttention | Recurrent | Beside
"""One of these."""


def attention_of(mixer: Mixer | None) -> SelfAttention | LatentAttention | None:
    """What of it attends."""
    if isinstance(mixer, Beside):
        return mixer.attention
    return mixer if isinstance(mixer, SelfAttention | LatentAttention) else None


def owner_of(mixer: Mixer | None) -> int | None:
    """The number of the layer whose keys and values it attends to; None: its own, or it does not attend."""
    return mixer.shares if isinstance(mixer, SelfAttention) else None
