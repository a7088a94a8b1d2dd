"""One turn of a conversation: a request for a response with the turns before it, and its conversion to a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec

from plimsoll_runtime.api.chat.conversation import converse, tokens_of
from plimsoll_runtime.api.generation.generation import Generation
from plimsoll_runtime.api.generation.schema_warnings import Fields
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.http.sse import Events
from plimsoll_runtime.api.http.unknown_fields import refuse_unknown
from plimsoll_runtime.api.responses.builder import Draft, ResponseAnswers
from plimsoll_runtime.api.responses.errors import FIELDS, in_terms_of_responses
from plimsoll_runtime.api.responses.items import packed, refuse_images
from plimsoll_runtime.api.responses.output import Output
from plimsoll_runtime.api.responses.shares import StoredResponse
from plimsoll_runtime.api.responses.translation import converted
from plimsoll_runtime.api.schemas.response import Item, Response
from plimsoll_runtime.api.schemas.response_events import Failed
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

logger = logging.getLogger(__name__)
_FIELDS = Fields("text.format.schema", "tools[{}].parameters", FIELDS["reasoning_effort"], FIELDS["verbosity"])


@dataclass(frozen=True, slots=True)
class Turn:
    """A request for a response. `before` are the items of earlier turns, `items` those of the turn's own input. `size`
    is the number of bytes of all of them."""

    body: ResponseRequest
    draft: Draft
    output: Output
    owner: str
    before: Sequence[Item]
    items: Sequence[Item]
    size: int

    def count(self, model: ServedModel) -> int:
        """Return the number of tokens that the model would read. Raises ApiError."""
        self._settle_on(model)
        return converted(self.body, self._conversation, lambda chat: len(tokens_of(chat, model)))

    def prepare(self, model: ServedModel, record: RequestRecord, begun: Callable[[], None] | None = None) -> Job:
        """Return the turn's job on the model; `begun` is called when the job starts. Raises ApiError."""
        self._settle_on(model)
        form = partial(ResponseAnswers, self.draft, self.output)
        converse_as = partial(converse, model=model, record=record, form=form, fields=_FIELDS)
        generation = converted(self.body, self._conversation, converse_as)
        return Job(self, generation, begun)

    @property
    def _conversation(self) -> list[Item]:
        return [*self.before, *self.items]

    def _settle_on(self, model: ServedModel) -> None:
        """Give the response the model's first name and sampling defaults. Raises ApiError for unknown fields and for
        images, if the model refuses them."""
        if model.options.strict_parameters:
            refuse_unknown(self.body)
        if model.options.image_parts == "refuse":
            refuse_images(self.body.input)
        self.draft.model, self.draft.recommended = model.names[0], model.recommended

    def failed(self, error: ApiError) -> Failed:
        """Return the event that ends the response with an error."""
        logger.warning("response %s failed: %s", self.draft.id, error.message)
        return Failed(response=self.draft.failed(error, self.output.snapshot()))

    def kept(self, response: Response, events: bytes = b"", *, running: bool = False) -> StoredResponse:
        """Return the response for the store."""
        told = msgspec.json.encode(response)
        previous = self.body.previous_response_id
        return StoredResponse(self.draft.id, self.owner, previous, told, packed(self.items), events, running)


@dataclass(frozen=True, slots=True)
class Job:
    """A turn that is ready to run on its model."""

    turn: Turn
    generation: Generation
    begun: Callable[[], None] | None = None

    async def whole(self) -> Response:
        """Return the complete response. Raises ApiError."""
        with in_terms_of_responses():
            return cast(Response, await self.generation.whole())

    async def events(self) -> Events:
        """Yield the response's events. Raises ApiError."""
        if self.begun is not None:
            self.begun()
        with in_terms_of_responses():
            async with aclosing(self.generation.events()) as events:
                async for event in events:
                    yield event
