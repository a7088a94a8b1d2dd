"""The routes of /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from plimsoll_runtime.api.endpoint import Ask
from plimsoll_runtime.api.http.body import parse, read_body
from plimsoll_runtime.api.http.concurrency import offload, unless_gone
from plimsoll_runtime.api.http.errors import ApiError, json_response
from plimsoll_runtime.api.http.queries import choice, page_of, whole_number
from plimsoll_runtime.api.http.sse import Comment, Events, open_stream
from plimsoll_runtime.api.http.unknown_fields import ignored
from plimsoll_runtime.api.model_directory import ModelTable, Route
from plimsoll_runtime.api.responses.background import STOPPED, Background, BackgroundResponse, unpack
from plimsoll_runtime.api.responses.builder import Draft
from plimsoll_runtime.api.responses.errors import not_found, response_id
from plimsoll_runtime.api.responses.items import input_of, items_of, referred, taken
from plimsoll_runtime.api.responses.output import Output
from plimsoll_runtime.api.responses.shares import StoredResponse
from plimsoll_runtime.api.responses.store import ResponseStore
from plimsoll_runtime.api.responses.translation import check_calls
from plimsoll_runtime.api.responses.turn import Job, Turn
from plimsoll_runtime.api.schemas.response import DeletedResponse, InputTokens, Item, ItemList, Response, ResponseError
from plimsoll_runtime.api.schemas.response_events import ENDS, Numbered
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.api.schemas.sampling import COUNT_LIMIT, invalid
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.telemetry.request_record import RequestRecord

USUAL_ITEMS, MOST_ITEMS = 20, 100
"""Default and largest number of items on a page."""
_RESPONSE = msgspec.json.Decoder(Response)


class Responses:
    """The handlers of the routes."""

    def __init__(self, store: ResponseStore, background: Background) -> None:
        self._store = store
        self._background = background

    async def create(self, request: Request, models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Create a response: as a whole, as a stream, or in the background. Raises ApiError, ClientGoneError."""
        models.check()
        turn = await self._asked(request, record)
        if turn.body.background:
            return await self._in_background(request, turn, models, record)
        ask = _ask(turn, models, record)
        if turn.body.stream:
            return await open_stream(request, self._streamed(turn, ask), record)
        response = await unless_gone(request.receive, ask.whole())
        assert isinstance(response, Response)
        await self._keep(turn, response)
        return json_response(response)

    async def count(self, request: Request, models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Count the tokens that the model would read. Raises ApiError, ClientGoneError."""
        turn = await self._asked(request, record)

        async def counted() -> int:
            async with models.lease(turn.body.model, turn.size) as model:
                record.key = model.key
                return await offload(turn.size, partial(turn.count, model))

        record.prompt_tokens = await unless_gone(request.receive, counted())
        record.model = turn.draft.model
        return json_response(InputTokens(record.prompt_tokens))

    async def retrieve(self, request: Request, _models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Return a response in its present state or, with `stream=true`, its events with a number above
        `starting_after`. Raises ApiError, ClientGoneError."""
        query = request.query_params
        streams = choice(query, "stream", ("true", "false")) == "true"
        after = whole_number(query, "starting_after", 0, COUNT_LIMIT)
        if after is not None and not streams:
            raise invalid("starting_after", "it needs 'stream=true'")
        running, kept = await self._found(request, record)
        if streams:
            return await self._followed(request, record, running, kept, -1 if after is None else after)
        return json_response(running.latest) if running is not None else _as_kept(kept)

    async def delete(self, request: Request, _models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Delete a response; a running one is cancelled. Raises ApiError."""
        running, kept = await self._found(request, record)
        if running is not None:
            await self._background.forget(running)
        else:
            await self._store.delete(kept.id, record.owner)
        return json_response(DeletedResponse(kept.id))

    async def cancel(self, request: Request, _models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Cancel a background response; one that has ended stays unchanged. Raises ApiError."""
        running, kept = await self._found(request, record)
        if running is None:
            if not _RESPONSE.decode(kept.response).background:
                raise ApiError(
                    "Only a response created with 'background': true can be cancelled.", code="not_in_background"
                )
            return _as_kept(kept)
        await running.break_off("cancelled")
        return json_response(running.latest)

    async def input_items(self, request: Request, _models: ModelTable, record: RequestRecord) -> HttpResponse:
        """Return a page of the items that the model read: input and output of earlier turns, and the request's own
        input; the newest first, unless the query's `order` is "asc". Raises ApiError."""
        _, kept = await self._found(request, record)
        before = [] if kept.previous is None else await self._store.turns(kept.previous, record.owner)
        size = kept.size + sum(turn.size for turn in before)

        def listed() -> ItemList:
            items = [item for turn in before for item in items_of(turn)] + input_of(kept)
            page = page_of(items[::-1], request.query_params, USUAL_ITEMS, MOST_ITEMS)
            return ItemList(page.items, page.first_id, page.last_id, page.more)

        return json_response(await offload(size, listed))

    async def _asked(self, request: Request, record: RequestRecord) -> Turn:
        """Read a request, and return it with the earlier turns of its conversation. Raises ApiError,
        ClientGoneError."""
        data = await read_body(request)
        record.phases.end("read")
        body = await unless_gone(request.receive, offload(len(data), partial(parse, data, ResponseRequest)))
        record.phases.end("parse")
        record.ignored = ignored(body)
        body.check()
        draft = Draft(response_id(request.headers), body, body.model, record.created)
        turn = await unless_gone(request.receive, self._turn(draft, len(data), record.owner))
        record.phases.end("recall")
        return turn

    async def _turn(self, draft: Draft, size: int, owner: str) -> Turn:
        """Return the turn with the earlier turns of its conversation. Raises ApiError."""
        body, previous = draft.body, draft.body.previous_response_id
        turns = [] if previous is None else await self._store.turns(previous, owner)
        if turns and turns[-1].running:
            raise invalid("previous_response_id", "that response has not ended; wait for its end or cancel it")
        kept = await self._store.several(referred(body.input), owner)
        size += sum(one.size for one in (*turns, *kept.values()))

        def made() -> Turn:
            before: list[Item] = [item for turn in turns for item in items_of(turn)]
            items = taken(body.input, draft.id, kept)
            check_calls(before, items)
            summarised = body.reasoning is not None and body.reasoning.summarised is not None
            return Turn(body, draft, Output(draft.id, len(items), summarised=summarised), owner, before, items, size)

        return await offload(size, made)

    async def _keep(self, turn: Turn, response: Response) -> None:
        """Store the response if requested; `store` becomes false if that fails."""
        if turn.body.stored:
            response.store = await self._store.put(turn.kept(response))

    async def _streamed(self, turn: Turn, ask: Ask) -> Events:
        """Yield numbered events. The response is stored before its last event is sent. After the first event, errors
        become events; before it they are raised."""
        number = 0
        async with aclosing(_to_the_end(turn, ask)) as events:
            async for event in events:
                if isinstance(event, Numbered):
                    event.sequence_number = number
                    number += 1
                if isinstance(event, ENDS):
                    await self._keep(turn, event.response)
                yield event

    async def _in_background(
        self, request: Request, turn: Turn, models: ModelTable, record: RequestRecord
    ) -> HttpResponse:
        own = record.detached()
        ask = partial(_ask, turn, models, own)
        starting = self._background.start(turn, ask, models.keep_alive)
        running = await unless_gone(request.receive, starting)
        record.model, record.key = own.model, own.key
        if turn.body.stream:
            return await _stream(request, running.log.after(-1), record)
        return json_response(running.latest)

    async def _found(self, request: Request, record: RequestRecord) -> tuple[BackgroundResponse | None, StoredResponse]:
        """Return the response that the path names: the running one, None if it does not run, and the stored one. Raises
        ApiError (404)."""
        response = request.path_params["response_id"]
        running = self._background.get(response, record.owner)
        kept = await self._store.get(response, record.owner)
        if kept is not None:
            return running, kept
        if running is not None:
            return running, running.turn.kept(running.latest, running=True)
        raise not_found(response)

    async def _followed(
        self,
        request: Request,
        record: RequestRecord,
        running: BackgroundResponse | None,
        kept: StoredResponse,
        after: int,
    ) -> HttpResponse:
        if running is not None and running.follows:
            return await _stream(request, running.log.after(after), record)
        if running is not None or not kept.events:
            raise invalid("stream", "only a response created with 'background' and 'stream' can be followed")
        events = await offload(len(kept.events), partial(unpack, kept.events))
        return await _stream(request, _all(events[after + 1 :]), record)


def _ask(turn: Turn, models: ModelTable, record: RequestRecord, running: BackgroundResponse | None = None) -> Ask:
    begun = None if running is None else running.begun.set

    def prepare(model: ServedModel) -> Job:
        return turn.prepare(model, record, begun)

    return Ask(models, turn.body.model, turn.size, prepare, record)


async def _to_the_end(turn: Turn, ask: Ask) -> Events:
    begun = False
    try:
        async with aclosing(ask.events()) as events:
            async for event in events:
                begun = begun or isinstance(event, Numbered)
                yield event
    except ApiError as error:
        if not begun:
            raise
        yield turn.failed(error)


def _as_kept(kept: StoredResponse) -> HttpResponse:
    """Return a stored response; one that was running when the server ended has failed."""
    if not kept.running:
        return HttpResponse(kept.response, media_type="application/json")
    response = _RESPONSE.decode(kept.response)
    response.status, response.error = "failed", ResponseError("server_error", STOPPED)
    return json_response(response)


async def _stream(request: Request, events: Events, record: RequestRecord) -> HttpResponse:
    return await open_stream(request, _never_empty(events), record)


async def _all(events: Sequence[Numbered]) -> Events:
    for event in events:
        yield event


async def _never_empty(events: Events) -> Events:
    """Yield the events, or a comment if there are none."""
    told = False
    async with aclosing(events):
        async for event in events:
            told = True
            yield event
    if not told:
        yield Comment("no more events")


def response_routes(store: ResponseStore, background: Background) -> tuple[Route, ...]:
    """Return method, path and handler of each route."""
    routes = Responses(store, background)
    return (
        ("POST", "/v1/responses", routes.create),
        ("POST", "/v1/responses/input_tokens", routes.count),
        ("GET", "/v1/responses/{response_id}", routes.retrieve),
        ("DELETE", "/v1/responses/{response_id}", routes.delete),
        ("POST", "/v1/responses/{response_id}/cancel", routes.cancel),
        ("GET", "/v1/responses/{response_id}/input_items", routes.input_items),
    )
