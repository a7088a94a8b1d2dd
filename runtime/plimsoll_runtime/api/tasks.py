"""Which endpoints answer for a model: one that gives vectors does not chat, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.engine.protocol.messages import EngineInfo
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo, Task

if TYPE_CHECKING:
    from plimsoll_runtime.api.served import ServedModel

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
