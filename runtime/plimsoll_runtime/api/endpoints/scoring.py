"""POST /v1/score, /v1/rerank and /v1/classify: scores of pairs of texts, by a model that reads both or by their
vectors, and labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import UNSET

from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generation.pooling_job import PoolingJob, Reader
from plimsoll_runtime.api.model_directory import CLASSIFIES, COMPARES
from plimsoll_runtime.api.schemas.pooling import (
    Classification,
    ClassifyAnswer,
    ClassifyRequest,
    CompareFields,
    PoolingUsage,
    Rank,
    RankedText,
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
)
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.comparison import Scores, comparison
from plimsoll_runtime.text.pooling import (
    PooledText,
    Vector,
    ranked,
    scaled,
    shown_score,
)


def prepare_score(body: ScoreRequest, model: ServedModel, record: RequestRecord) -> PoolingJob:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    ones, others = body.text_1, body.text_2
    if len(ones) not in (1, len(others)):
        raise invalid(
            "text_1",
            f"it has {len(ones)} texts and 'text_2' has {len(others)}; send as many, or 1 to compare with all of them",
        )
    reader = Reader(body, model)
    texts, scores = _compared(reader, body, ones, others, ("text_1", "text_2"))
    shown = _shown(body, reader.info)

    def form(vectors: Sequence[Vector], usage: PoolingUsage) -> ScoreAnswer:
        data = [Score(index, shown(score)) for index, score in enumerate(scores(vectors))]
        return ScoreAnswer(f"score-{record.request_id}", int(time.time()), model.names[0], data, usage)

    return reader.job(texts, "text_2", record, form)


def prepare_rerank(body: RerankRequest, model: ServedModel, record: RequestRecord) -> PoolingJob:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    reader = Reader(body, model)
    texts, scores = _compared(reader, body, [body.query], body.documents, ("query", "documents"))
    shown, with_texts = _shown(body, reader.info), body.return_documents is not False

    def form(vectors: Sequence[Vector], usage: PoolingUsage) -> RerankAnswer:
        found = scores(vectors)
        results = [
            Rank(place, shown(found[place]), RankedText(body.documents[place]) if with_texts else UNSET)
            for place in ranked(found, body.top_n or None)
        ]
        return RerankAnswer(f"rerank-{record.request_id}", model.names[0], results, usage)

    return reader.job(texts, "documents", record, form)


def _shown(body: CompareFields, info: PoolingInfo) -> Callable[[float], float]:
    """Return the function that turns a raw score into the one that clients see."""
    return (lambda raw: raw) if body.use_activation is False else partial(shown_score, info=info)


def _compared(
    reader: Reader, body: CompareFields, ones: Sequence[str], others: Sequence[str], fields: tuple[str, str]
) -> tuple[list[PooledText], Scores]:
    """Return the texts whose vectors the model has to compute, and the function that computes the scores from these
    vectors. `ones[i]` is compared with `others[i]`, a single text in `ones` with all `others`."""
    if body.instruction is not None and not reader.texts.takes_instruction:
        raise invalid("instruction", "this model takes no instruction; leave it out")

    def single(text: str, role: str | None, is_first: bool) -> PooledText:
        return reader.single(text, fields[0] if is_first else fields[1], role)

    def pair(one: str, other: str) -> PooledText:
        return reader.pair(one, other, fields[1], body.instruction)

    return comparison(reader.texts, reader.info, ones, others, single, pair)


score = Endpoint(ScoreRequest, prepare_score, COMPARES)
rerank = Endpoint(RerankRequest, prepare_rerank, COMPARES)


def prepare(body: ClassifyRequest, model: ServedModel, record: RequestRecord) -> PoolingJob:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    reader = Reader(body, model)
    texts = [
        reader.single(each, "input") if isinstance(each, str) else reader.pair(*each, "input") for each in body.input
    ]
    info, raw = reader.info, body.use_activation is False

    def form(vectors: Sequence[Vector], usage: PoolingUsage) -> ClassifyAnswer:
        data = []
        for index, vector in enumerate(vectors):
            scores = vector if raw else scaled(vector, info)
            label = info.labels[int(vector.argmax())]
            data.append(Classification(index, label, scores.tolist(), scores.size))
        return ClassifyAnswer(f"classify-{record.request_id}", int(time.time()), model.names[0], data, usage)

    return reader.job(texts, "input", record, form)


classify = Endpoint(ClassifyRequest, prepare, CLASSIFIES)
