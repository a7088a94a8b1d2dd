"""The models of a server by served name, the endpoints of each task, and the type of routes that need a model."""

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
from plimsoll_runtime.residency.spec import ModelName
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
"""The endpoints that serve each task."""


def task_of(info: EngineInfo) -> Task:
    """Return the task that an engine's model serves."""
    return "generate" if info.pooling is None else info.pooling.task


def check_task(model: ServedModel, tasks: Tasks) -> None:
    """Raise ApiError if a model serves none of `tasks`; the message names the endpoints of its own task."""
    if (task := task_of(model.engine.info)) in tasks:
        return
    raise ApiError(
        f"The model '{model.names[0]}' serves the task '{task}', and this endpoint needs {' or '.join(tasks)}; "
        f"use {', '.join(ENDPOINTS[task])}.",
        param="model",
        code="unsupported_task",
    )


def pooling_of(model: ServedModel) -> PoolingInfo:
    """Return the pooling settings of a model that passed `check_task` for a task other than `generate`."""
    pooling = model.engine.info.pooling
    assert pooling is not None
    return pooling


NAMES_TOLD = 20
"""Most names that the error for an unknown name lists."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model as lists and metrics show it. `key` has the labels of its metrics. `created` is Unix time. `stats` are
    None while the model has no engine; `max_model_len`, `task` and `served` are known after its first load. `state` is
    its sleep level on a host, or a transition (see `State`)."""

    key: ModelName
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
        """Seconds between the comments that a stream gets while it waits for its model; None sends no comments."""

    def views(self) -> Sequence[ModelView]:
        """Return the present state of all models."""

    def check(self) -> None:
        """Raise ApiError if the server refuses every request at the moment. Called before a body is parsed."""

    def lease(self, name: str | None, size: int) -> AbstractAsyncContextManager[ServedModel]:
        """Return a context that holds a reference to the model `name`. Entering it waits until the model is loaded.

        `name` may be None if the server has one model only. `size` is the request's body in bytes. Raises ApiError,
        here or on entering: 404 for an unknown name, 503 if the model cannot be loaded in time.
        """


class OneModel:
    """The model table of `plimsoll serve`: one model, always loaded."""

    keep_alive = None
    """No request waits for the model."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model

    def views(self) -> Sequence[ModelView]:
        """Return the view of the one model."""
        model = self.model
        info = model.engine.info
        length, task = longest_sequence(info), task_of(info)
        stats = model.engine.stats
        return [ModelView(model.key, model.names, model.created, length, model.room, stats, task=task, served=model)]

    def check(self) -> None:
        """Raise ApiError (503) if the queue limit is reached."""
        self.model.room.check()

    def lease(self, name: str | None, size: int) -> AbstractAsyncContextManager[ServedModel]:
        """Return a context with the model, if `name` is None or one of its names. Raises ApiError (404) otherwise."""
        if name is not None and name not in self.model.names:
            raise unknown_model(name, self.model.names)
        return nullcontext(self.model)


def key_of(models: ModelTable, name: str) -> ModelName:
    """Return the labels of the metrics of the model with this served name, which may be gone."""
    return next((view.key for view in models.views() if name in view.names), ModelName("", name))


def unknown_model(name: str, names: Iterable[str]) -> ApiError:
    """Return the error (404) for a name that no model of this server has."""
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
"""Method, path and handler."""
