"""Scores of pairs of texts, by a model that reads both or by the cosine similarity of their vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.pooling import DOCUMENTS, QUERY, PooledText, PooledTexts, Vector, raw_score, similarity

Scores = Callable[[Sequence[Vector]], list[float]]
"""Computes the raw score of each pair from the vectors of all texts. Pairs are ranked by raw scores, because many
probabilities are so close to 1 that they tie."""


def comparison(
    texts: PooledTexts,
    info: PoolingInfo,
    ones: Sequence[str],
    others: Sequence[str],
    single: Callable[[str, str | None, bool], PooledText],
    pair: Callable[[str, str], PooledText],
) -> tuple[list[PooledText], Scores]:
    """Return the texts for the model to compute, and the function that computes scores from their vectors. `ones[i]` is
    compared with `others[i]`; a single text in `ones` is compared with all `others`.

    `single` encodes one text and gets the name of the model's prompt for it, or None, and whether the text is from
    `ones`. `pair` encodes two texts for a model that reads both.
    """
    if info.task != "embed":
        firsts = list(ones) * (len(others) // len(ones))
        pairs = [pair(one, other) for one, other in zip(firsts, others, strict=True)]
        return pairs, lambda vectors: [raw_score(vector, info) for vector in vectors]
    query, document = texts.role((QUERY,)), texts.role(DOCUMENTS)
    read = [single(one, query, True) for one in ones] + [single(other, document, False) for other in others]

    def similarities(vectors: Sequence[Vector]) -> list[float]:
        own, rest = vectors[: len(ones)], vectors[len(ones) :]
        return [similarity(own[index % len(own)], vector) for index, vector in enumerate(rest)]

    return read, similarities
