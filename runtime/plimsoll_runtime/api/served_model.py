"""A loaded model as requests use it: its engine, tokenizer and formats, and the load header that a gateway reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.engine.limits import check_priority
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.text.generation_config import Recommended
from plimsoll_runtime.text.tokenizer import Tokenizer


class Engine(Protocol):
    """An engine that runs somewhere else.

    When it dies, every generator raises EngineDeadError and `wait_dead` returns.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes and names, known since the start."""

    @property
    def stats(self) -> EngineStats:
        """As of the last step."""

    @property
    def failure(self) -> PlimsollError | None:
        """Why it is dead, None while it lives."""

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one request as they come; closing the generator early aborts the request."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Let it compile constraints, before the first request that has one; told again, it does nothing."""

    async def wait_dead(self) -> None:
        """Return once the engine has died, for whatever reason."""

    async def stop(self) -> None:
        """End the engine; returns when its process is gone."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model. `chat_stop` are strings that end a chat answer; `created` is when it was ready (Unix time);
    `recommended`: sampling settings of requests that leave them out. `about`: what a person should know of it before
    talking to it.
    """

    names: tuple[str, ...]
    engine: Engine
    tokenizer: Tokenizer
    created: int
    chat_stop: tuple[str, ...] = ()
    room: QueueLimit = field(default_factory=QueueLimit)
    options: ServingOptions = field(default_factory=ServingOptions)
    recommended: Recommended = field(default_factory=dict)
    about: str | None = None

    def check_priority(self, params: SamplingParams) -> None:
        """Raises ApiError for a priority that the engine would ignore."""
        try:
            check_priority(params, self.engine.info)
        except UsageError as error:
            raise ApiError(f"Invalid value for 'priority': {error}.", param="priority", code="invalid_value") from error


LOAD_HEADER = "x-plimsoll-load"


def load_of(model: ServedModel) -> str:
    """Sequences in the batch and waiting, how many a batch may have, and the share of the KV cache in use.

    As `running=3, waiting=0, slots=128, kv=0.25`. `slots` is left out where the engine does not tell.

    A gateway chooses replicas by it. An HTTP response goes there anyway, so this costs no request of its own.
    """
    stats = model.engine.stats
    used = stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0
    slots = model.engine.info.max_sequences
    return ", ".join(
        [
            f"running={stats.running}",
            f"waiting={stats.waiting}",
            *([f"slots={slots}"] if slots else []),
            f"kv={used:.2f}",
        ]
    )
