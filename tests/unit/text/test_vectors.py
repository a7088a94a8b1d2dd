"""Post-processing of vectors and scores."""

import numpy as np
import pytest

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.pooling import (
    cut,
    dimensions_refused,
    ranked,
    raw_score,
    scaled,
    shown_score,
    similarity,
    unpacked,
)


def vector(*numbers: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(numbers, np.float32)


def test_vectors_come_as_bytes() -> None:
    assert unpacked(vector(1.5, -2.0).tobytes()).tolist() == [1.5, -2.0]


def test_what_is_cut_has_its_length_again() -> None:
    whole = vector(0.6, 0.0, 0.8)
    assert cut(whole, 2, normalised=True).tolist() == [1.0, 0.0]
    assert cut(whole, 2, normalised=False).tolist() == whole[:2].tolist()
    assert cut(whole, None, normalised=True) is whole
    assert cut(vector(0.0, 0.0, 1.0), 2, normalised=True).tolist() == [0.0, 0.0]


def test_dimensions_that_may_be_asked_for() -> None:
    some = PoolingInfo("embed", 8, dimensions=(2, 4))
    assert [dimensions_refused(n, some) for n in (None, 2, 4, 8)] == [None] * 4
    assert dimensions_refused(3, some) == "this model's vectors may have 2 or 4 or 8 numbers, not 3"
    free = PoolingInfo("embed", 8, any_dimensions=True)
    assert [dimensions_refused(n, free) for n in (1, 7, 8)] == [None] * 3
    assert dimensions_refused(9, free) == "this model's vectors may have from 1 to 8 numbers, not 9"


def test_similarity_is_an_angle() -> None:
    assert similarity(vector(3, 0), vector(5, 0)) == pytest.approx(1.0)
    assert similarity(vector(3, 0), vector(0, 2)) == 0.0
    assert similarity(vector(0, 0), vector(0, 2)) == 0.0


def test_scores_of_pairs() -> None:
    head, tokens = PoolingInfo("score", 1, scale="sigmoid"), PoolingInfo("score", 1, scale="sigmoid", by_tokens=True)
    assert raw_score(vector(2.0), head) == raw_score(vector(2.0), tokens) == 2.0
    assert raw_score(vector(1.0, 4.0), tokens) == 3.0
    assert shown_score(0.0, head) == 0.5
    assert [shown_score(raw, head) for raw in (-1e4, 1e4)] == [0.0, 1.0]
    assert shown_score(-3.0, PoolingInfo("score", 1)) == -3.0


def test_scales() -> None:
    scores = vector(1000.0, 1000.0, -1000.0)
    assert scaled(scores, PoolingInfo("classify", 3, scale="softmax")).tolist() == [0.5, 0.5, 0.0]
    assert scaled(scores, PoolingInfo("classify", 3, scale="sigmoid")).tolist() == [1.0, 1.0, 0.0]
    assert scaled(scores, PoolingInfo("classify", 3)) is scores


def test_ranks_are_stable() -> None:
    assert ranked([0.1, 0.9, 0.1, 0.9]) == [1, 3, 0, 2]
    assert ranked([0.1, 0.9, 0.5], 2) == [1, 2]
