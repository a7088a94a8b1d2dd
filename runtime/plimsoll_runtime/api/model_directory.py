"""The models of a server by served name, the endpoints that each task has, and the type of routes that need a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.api.telemetry.request_record import RequestRecord
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo, Task
from plimsoll_runtime.utils.suggestions import did_you_mean

Tasks = tuple[Task, ...]
GENERATES: Tasks = ("generate",)
EMBEDS: Tasks = ("embed",)
CLASSIFIES: Tasks = ("classify",)
COMPARES: Tasks = ("score", "embed")

ENDPOINTS: Mapping[Task, tuple[str, ...]] = {
    "generate": ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    "embed": ("/v1/embeddings", "/v1/score", "/v1/rerank"),
    "classify": ("/v1/classify",),
    "score": ("/v1/score", "/v1/rerank"),
}
"""Of each task, those that ask a model for it."""


def task_of(info: EngineInfo) -> Task:
    """What an engine's model is served for."""
    return "generate" if info.pooling is None else info.pooling.task


def check_task(model: ServedModel, tasks: Tasks) -> None:
    """Raises ApiError where a model serves none of the tasks, with the endpoints that answer for it."""
    if (task := task_of(model.engine.info)) in tasks:
        return
    raise ApiError(
        f"The model '{model.names[0]}' is served for the task '{task}', and this endpoint wants {' or '.join(tasks)}: "
        f"ask it at {', '.join(ENDPOINTS[task])}.",
        param="model",
        code="unsupported_task",
    )


def pooling_of(model: ServedModel) -> PoolingInfo:
    """What a model gives in place of tokens; `check_task` has let nobody through whose model generates."""
    pooling = model.engine.info.pooling
    assert pooling is not None
    return pooling


NAMES_TOLD = 20
"""How many names the error for an unknown one lists."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as lists and metrics show it. `created` is Unix time; `stats` are its engine's, while it has one, and
    `max_model_len`, `task` and `served` are known once it has had one. `state`: where it is, in a server of several.
    """

    names: tuple[str, ...]
    created: int
    max_model_len: int | None
    room: QueueLimit
    stats: EngineStats | None
    state: str | None = None
    task: Task | None = None
    served: ServedModel | None = None


class ModelTable(Protocol):
    """The models of one server. Used on the event loop only."""

    @property
    def keep_alive(self) -> float | None:
        """Seconds that a stream may wait for its model in silence; from then on it gets a comment as often."""

    def views(self) -> Sequence[ModelView]:
        """All of them as they are now."""

    def check(self) -> None:
        """Raises ApiError where every request would be refused, whatever it says: asked before a body is parsed."""

    def lease(self, name: str | None, size: int) -> AbstractAsyncContextManager[ServedModel]:
        """The model of that name, in use until the context ends. Where it is not loaded, entering waits until it is.

        `name` may be None where a server has one model only. `size`: bytes of the request that waits. Raises ApiError,
        here or on entering: 404 for an unknown name, 503 where the model cannot be had in time.
        """


class OneModel:
    """The table of `plimsoll serve`: one model, loaded for good."""

    keep_alive = None
    """Nobody waits for a model that is there."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def views(self) -> Sequence[ModelView]:
        """The one."""
        model = self.model
        info = model.engine.info
        length, task = longest_sequence(info), task_of(info)
        return [ModelView(model.names, model.created, length, model.room, model.engine.stats, task=task, served=model)]

    def check(self) -> None:
        """Raises ApiError (503) where no answer more may wait."""
        self.model.room.check()

    def lease(self, name: str | None, size: int) -> AbstractAsyncContextManager[ServedModel]:
        """The model, if it has that name."""
        if name is not None and name not in self.model.names:
            raise unknown_model(name, self.model.names)
        return nullcontext(self.model)


def unknown_model(name: str, names: Iterable[str]) -> ApiError:
    """The error (404) for a name that no model here has."""
    known = list(names)
    more = f" and {len(known) - NAMES_TOLD} more" if len(known) > NAMES_TOLD else ""
    told = f"{', '.join(known[:NAMES_TOLD])}{more}" if known else "no model yet"
    return ApiError(
        f"The model '{name[:200]}' does not exist; this server has {told}.{did_you_mean(name, known)}",
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


Handler = Callable[[Request, ModelTable, RequestRecord], Awaitable[Response]]
Route = tuple[str, str, Handler]
"""Method, path and who answers."""
