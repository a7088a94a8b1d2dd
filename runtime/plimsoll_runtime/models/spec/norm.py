"""A norm, as a config describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square (Zhang and Sennrich, 2019) or layer normalisation (Ba et al., 2016).

    - `offset`: the factor is (offset + weight). It is 1 if the files store the factor minus 1 (as Gemma 1 to 3,
      Nemotron and Qwen3-Next), else 0.
    - `weighted`, `biased`: whether the files have a weight, and a bias.
    """

    eps: float
    kind: NormKind = "rms"
    offset: float = 0.0
    weighted: bool = True
    biased: bool = False
