"""Which experts compute a token, and what each of them weighs, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
