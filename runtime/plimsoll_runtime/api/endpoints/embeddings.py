"""POST /v1/embeddings: OpenAI's endpoint for vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from plimsoll_runtime.api.endpoint import Endpoint
from plimsoll_runtime.api.generation.pooling_job import PoolingJob, Reader
from plimsoll_runtime.api.model_directory import EMBEDS
from plimsoll_runtime.api.schemas.completions import Prompt
from plimsoll_runtime.api.schemas.pooling import Embedding, EmbeddingAnswer, EmbeddingRequest, PoolingUsage
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.text.pooling import PooledText, Vector, cut, dimensions_refused


def prepare(body: EmbeddingRequest, model: ServedModel, record: RequestRecord) -> PoolingJob:
    """Check a request without the engine, and return it ready to run. Raises ApiError."""
    reader = Reader(body, model)
    if reason := dimensions_refused(body.dimensions, reader.info):
        raise invalid("dimensions", reason)
    _check_prompt(body.prompt_name, reader.info)
    texts = [_read(reader, each, body.prompt_name) for each in body.input]
    normalised, encoded = reader.info.normalised, body.encoding_format == "base64"

    def form(vectors: Sequence[Vector], usage: PoolingUsage) -> EmbeddingAnswer:
        short = (cut(vector, body.dimensions, normalised=normalised) for vector in vectors)
        data = [Embedding(index, _json(vector, encoded=encoded)) for index, vector in enumerate(short)]
        return EmbeddingAnswer(data, model.names[0], usage)

    return reader.job(texts, "input", record, form)


def _check_prompt(name: str | None, info: PoolingInfo) -> None:
    if name is not None and name not in info.prompts:
        known = ", ".join(sorted(info.prompts)) or "none"
        raise invalid("prompt_name", f"the model has no prompt of that name; it has {known}")


def _read(reader: Reader, each: Prompt, prompt: str | None) -> PooledText:
    """Return the tokens of one input. A text is encoded after the model's prompt with the name `prompt`; token ids get
    no prompt. Both are truncated if the request says so."""
    if isinstance(each, str):
        return reader.single(each, "input", prompt)
    return PooledText(each if reader.most is None else each[: reader.most])


def _json(vector: Vector, *, encoded: bool) -> msgspec.Raw:
    """Return a vector as JSON: a list, or the base64 of its float32 numbers if `encoded`. Encoding vectors one at a
    time lets other threads run in between."""
    if encoded:
        return msgspec.Raw(b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"')
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))


embeddings = Endpoint(EmbeddingRequest, prepare, EMBEDS)
