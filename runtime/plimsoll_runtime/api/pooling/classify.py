"""POST /v1/classify: labels of texts, or of pairs of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.http.record import RequestRecord
from plimsoll_runtime.api.pooling.job import PoolingJob, Reader
from plimsoll_runtime.api.schemas.pooling import Classification, ClassifyAnswer, ClassifyRequest, PoolingUsage
from plimsoll_runtime.api.served import ServedModel
from plimsoll_runtime.api.tasks import CLASSIFIES
from plimsoll_runtime.text.pooling import Vector, scaled


def prepare(body: ClassifyRequest, model: ServedModel, record: RequestRecord) -> PoolingJob:
    """Check everything that can be known before the engine is asked. Raises ApiError."""
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
