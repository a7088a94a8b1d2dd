"""What is done to the numbers that an engine gives in place of tokens, the same for a server and for `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plimsoll_runtime.engine.pooling import PoolingInfo

Vector = NDArray[np.float32]


def unpacked(packed: bytes) -> Vector:
    """A vector as an engine sends it."""
    return np.frombuffer(packed, np.float32)


def cut(vector: Vector, dimensions: int | None, *, normalised: bool) -> Vector:
    """Its first numbers; what had length 1 has it again."""
    if dimensions is None or dimensions >= vector.size:
        return vector
    short = vector[:dimensions]
    return _of_length_one(short) if normalised else short


def dimensions_refused(asked: int | None, info: PoolingInfo) -> str | None:
    """Why a model's vectors may not be cut to so many numbers; None where they may."""
    if asked is None or asked == info.size or asked in info.dimensions:
        return None
    if info.any_dimensions and 0 < asked < info.size:
        return None
    listed = " or ".join(map(str, (*info.dimensions, info.size)))
    may = f"from 1 to {info.size} numbers" if info.any_dimensions else f"{listed} numbers"
    return f"this model's vectors may have {may}, not {asked}"


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors."""
    return float(_of_length_one(one) @ _of_length_one(other))


def raw_score(vector: Vector, info: PoolingInfo) -> float:
    """How well the texts of a pair go together, by what came of it; of two tokens, how much more speaks for it."""
    return float(vector[-1]) - float(vector[0]) if info.by_tokens and vector.size > 1 else float(vector[0])


def shown_score(raw: float, info: PoolingInfo) -> float:
    """A raw score as the model means it: of two tokens the probability of one, as if there were no others."""
    return float(_sigmoid(np.asarray(raw))) if info.scale == "sigmoid" else raw


def scaled(scores: Vector, info: PoolingInfo) -> Vector:
    """Raw scores as the model means them: each by itself, or all together as probabilities."""
    if info.scale == "sigmoid":
        return _sigmoid(scores).astype(np.float32)
    return _softmax(scores) if info.scale == "softmax" else scores


def ranked(scores: Sequence[float], most: int | None = None) -> list[int]:
    """The places of the highest scores, the best first; of equals the one that came first."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    return order if most is None else order[:most]


def _sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    """Without overflow: both halves of it are of numbers below 0."""
    small = np.exp(-np.abs(scores))
    found: NDArray[Any] = np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
    return found


def _softmax(scores: Vector) -> Vector:
    parts = np.exp(scores - scores.max())
    found: Vector = (parts / parts.sum()).astype(np.float32)
    return found


def _of_length_one(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector
