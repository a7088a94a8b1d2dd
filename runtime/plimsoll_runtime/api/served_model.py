"""A loaded model with its engine, tokenizer and formats, and the load header for gateways."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.api.telemetry.metrics_key import metrics_key
from plimsoll_runtime.engine.limits import check_priority
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import PlimsollError, UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.text.generation_config import Recommended
from plimsoll_runtime.text.tokenizer import Tokenizer


class Engine(Protocol):
    """An engine: in another process, or in this one for `plimsoll batch`.

    When it dies, every generator raises EngineDeadError and `wait_dead` returns.
    """

    @property
    def info(self) -> EngineInfo:
        """Sizes and names, fixed at the engine's start."""

    @property
    def stats(self) -> EngineStats:
        """Counters as of the last step."""

    @property
    def failure(self) -> PlimsollError | None:
        """The error that ended the engine; None while it runs."""

    @property
    def pid(self) -> int | None:
        """Its process; None if that is this one."""

    def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request as they arrive; closing the generator early aborts the request."""

    def use(self, vocabulary: Vocabulary) -> None:
        """Send the engine the tokenizer's vocabulary, before the first request with a constraint or a reasoning budget.
        Further calls do nothing."""

    def drain(self) -> None:
        """Keep what running requests need until `stop`. Called before the server waits for their end."""

    async def wait_dead(self) -> None:
        """Wait until the engine has died."""

    async def stop(self) -> None:
        """End the engine and wait until its process is gone."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model. `chat_stop` are strings that end a chat output; `created` is the Unix time when it became
    ready; `recommended` are sampling settings for requests that leave them out. `about` is a note for people who
    start to use the model. `deployment` is its ModelDeployment, if it has one."""

    names: tuple[str, ...]
    engine: Engine
    tokenizer: Tokenizer
    created: int
    chat_stop: tuple[str, ...] = ()
    room: QueueLimit = field(default_factory=QueueLimit)
    options: ServingOptions = field(default_factory=ServingOptions)
    recommended: Recommended = field(default_factory=dict)
    about: str | None = None
    deployment: ModelName | None = None

    @property
    def key(self) -> ModelName:
        """The labels of its metrics: see `metrics_key`."""
        return metrics_key(self.deployment, self.names)

    def check_priority(self, params: SamplingParams) -> None:
        """Raise ApiError for a priority that the engine would ignore."""
        try:
            check_priority(params, self.engine.info)
        except UsageError as error:
            raise invalid("priority", str(error)) from error


LOAD_HEADER = "x-plimsoll-load"


def load_of(model: ServedModel) -> str:
    """Return the load of a model: running and waiting sequences, slots and the share of the KV cache in use.

    For example `running=3, waiting=0, slots=128, kv=0.25`. `slots` is left out if the engine does not report it.
    Gateways choose replicas by this header; it travels with HTTP responses, so it costs no request of its own.
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
