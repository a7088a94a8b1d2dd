"""One layer, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plimsoll_runtime.models.spec.feed_forward import FeedForward
from plimsoll_runtime.models.spec.mixer import Mixer
from plimsoll_runtime.models.spec.norm import Norm

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
