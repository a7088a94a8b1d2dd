"""The job of every endpoint that pools: texts become vectors, from which the endpoint makes its response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from plimsoll_runtime.api.generation.choices import as_api_errors, check_output, failed, new_engine_id
from plimsoll_runtime.api.generation.prompts import check_text, check_tokens, prompt_errors, too_long
from plimsoll_runtime.api.http.concurrency import offload
from plimsoll_runtime.api.http.sse import Events
from plimsoll_runtime.api.model_directory import pooling_of
from plimsoll_runtime.api.schemas.pooling import PoolingFields, PoolingUsage
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.credentials import salted
from plimsoll_runtime.api.server.queue_limit import QueueReservation
from plimsoll_runtime.api.telemetry.request_record import POOL, RequestRecord
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.prompt import Prompt
from plimsoll_runtime.text.pooling import PooledText, PooledTexts, Vector, unpacked

Form = Callable[[Sequence[Vector], PoolingUsage], msgspec.Struct]
"""Makes the response from the vectors of all texts, in order. It may run in a thread."""


@dataclass(frozen=True, slots=True)
class PoolingJob:
    """A validated request for vectors, ready to run."""

    model: ServedModel
    requests: Sequence[AddRequest]
    record: RequestRecord
    form: Form

    async def whole(self) -> msgspec.Struct:
        """Return the response. Raises ApiError."""
        lengths = {index: len(request.prompt_token_ids) for index, request in enumerate(self.requests)}
        tokens = self.record.prompt_tokens = sum(lengths.values())
        with self.model.room.take({index: index for index in lengths}, lengths) as seats:
            try:
                vectors = await _together([self._vector(index, seats) for index in lengths])
            finally:
                self.record.phases.end(POOL)
        size = sum(vector.nbytes for vector in vectors)
        return await offload(size, lambda: self.form(vectors, PoolingUsage(tokens, tokens)))

    async def events(self) -> Events:
        """Yield the response as the only event. Bodies that ask for a stream are refused earlier."""
        yield await self.whole()

    async def _vector(self, index: int, seats: QueueReservation) -> Vector:
        """Return the vector of one text. Raises ApiError."""
        request = self.requests[index]
        with as_api_errors():
            async with aclosing(self.model.engine.generate(request)) as outputs:
                async for output in outputs:
                    self.record.marked(index, output.marks)
                    check_output(output)
                    if output.vector is None:
                        raise failed("the engine returned no vector")
                    seats.leave(index)
                    self.record.saw(index, 0, time.monotonic())
                    self.record.cached_tokens += output.cached_tokens
                    self.record.finished("stop")
                    return unpacked(output.vector)
        raise failed()


async def _together(work: Sequence[Coroutine[Any, Any, Vector]]) -> list[Vector]:
    """Return the results in order; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Reader:
    """Encodes the texts of one request's body for the model. Raises ApiError that names the field."""

    def __init__(self, body: PoolingFields, model: ServedModel) -> None:
        self._body = body
        self._model = model
        self.info = pooling_of(model)
        self.texts = PooledTexts(model.tokenizer, self.info)
        self._longest = longest_sequence(model.engine.info)
        self.most = self._most(body.truncate_prompt_tokens)

    def single(self, text: str, field: str, prompt: str | None = None) -> PooledText:
        """Encode the model's prompt with the name `prompt` (None: its default prompt, if it has one), followed by one
        text. Errors name the body's field `field`."""
        self._check(text, field)
        with prompt_errors(field):
            return self.texts.single(text, prompt, self.most)

    def pair(self, one: str, other: str, field: str, instruction: str | None = None) -> PooledText:
        """Encode two texts as one input. If the request asks for truncation, the second text is truncated; a pair that
        a template encloses is refused instead (`PooledTexts.pair`). Raises ApiError that names `field`."""
        self._check(one + other, field)
        with prompt_errors(field):
            return self.texts.pair(one, other, instruction, self.most)

    def job(self, texts: Sequence[PooledText], field: str, record: RequestRecord, form: Form) -> PoolingJob:
        """Return the job of all texts, after checking their lengths. `field` is the request's field with the texts."""
        params = self._body.params()
        self._model.check_priority(params)
        engine_id, salt, arrived = new_engine_id(), salted(record.tenant, None), int(record.started * 1e9)
        requests = []
        for index, text in enumerate(texts):
            check_tokens(self._model, text.ids, field)
            if len(text.ids) > self._longest:
                had = f"your {field} resulted in a prompt of {len(text.ids)} tokens"
                cut = "or let the server cut it ('truncate_prompt_tokens': -1)"
                raise too_long(self._longest, had, f"the {field}, {cut}", field)
            context = RequestContext(params, 0, salt, arrived, text.second)
            requests.append(AddRequest(f"{engine_id}-{index}", Prompt(text.ids), context))
            record.enters_engine(requests[-1].request_id)
        return PoolingJob(self._model, requests, record, form)

    def _check(self, text: str, field: str) -> None:
        if self.most is None:
            check_text(self._model, text, field)

    def _most(self, asked: int | None) -> int | None:
        """Return the most tokens of an input; None if inputs are not truncated. `asked` is the body's field, -1 for the
        context length."""
        if asked is None:
            return None
        if asked == 0:
            raise invalid("truncate_prompt_tokens", "it must be -1 (the model's maximum) or at least 1")
        if asked > self._longest:
            raise invalid("truncate_prompt_tokens", f"it must be at most {self._longest}, the model's context length")
        return self._longest if asked == -1 else asked
