"""The models of a host by served name, with their server options. A request for a sleeping model waits until it is
awake."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from plimsoll_runtime.api.host.config import KEEP_ALIVE_SECONDS
from plimsoll_runtime.api.host.errors import as_api_errors, unusable
from plimsoll_runtime.api.host.tokenizers import Failure, Tokenizers, TokenizerSource
from plimsoll_runtime.api.http.errors import RETRY_AFTER, ApiError
from plimsoll_runtime.api.model_directory import ModelView, task_of, unknown_model
from plimsoll_runtime.api.served_model import ServedModel
from plimsoll_runtime.api.server.queue_limit import QueueLimit
from plimsoll_runtime.engine.limits import longest_sequence
from plimsoll_runtime.options import ServingOptions, serving_options
from plimsoll_runtime.residency.engines.base import Resident
from plimsoll_runtime.residency.host import Host
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, served_names
from plimsoll_runtime.residency.states import State
from plimsoll_runtime.text.generation_config import recommended
from plimsoll_runtime.weights.files import ModelFiles

logger = logging.getLogger(__name__)

HAS_FILES = frozenset(State) - {State.ABSENT, State.FETCHING}
LONG = 3600.0


@dataclass(slots=True)
class Placement:
    """The server's record of a placed model. `served` is the model with its latest engine, which has the number
    `serial` (-1: none yet).

    `files` are those that the host found. `options` is the server's part of `spec.runtime`, read once for each spec.
    """

    name: ModelName
    spec: ModelSpec
    created: int = field(default_factory=lambda: int(time.time()))
    files: ModelFiles | None = None
    options: ServingOptions = field(init=False)
    room: QueueLimit = field(init=False)
    served: ServedModel | None = None
    serial: int = -1

    def __post_init__(self) -> None:
        self.options = serving_options(self.spec.runtime)
        self.room = self._make_room()

    def renew(self, spec: ModelSpec) -> None:
        """Apply another spec. Waiting requests keep their reservations if the queue limit is unchanged."""
        self.spec, self.served, self.serial = spec, None, -1
        self.options = serving_options(spec.runtime)
        room = self._make_room()
        if (room.limit, room.token_limit) != (self.room.limit, self.room.token_limit):
            self.room = room

    def _make_room(self) -> QueueLimit:
        return QueueLimit(self.options.max_waiting, self.options.max_waiting_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that requests use."""
        return served_names(self.name, self.spec)

    @property
    def source(self) -> TokenizerSource:
        """The key of its tokenizer in `Tokenizers`."""
        apart = "" if self.spec.token is None else self.name.namespace
        root = "" if self.files is None else str(self.files.root)
        return TokenizerSource(self.spec.source, self.spec.model_revision, apart, root)


class HostModels:
    """The model table of a host. The host limits requests that wait for a model in number, bytes and time."""

    def __init__(
        self, host: Host, tokenizers: Tokenizers | None = None, keep_alive: float | None = KEEP_ALIVE_SECONDS
    ) -> None:
        self.keep_alive = keep_alive
        self._host = host
        self._tokenizers = tokenizers or Tokenizers()
        self._placements: dict[ModelName, Placement] = {}
        self._names: dict[str, Placement] = {}

    def views(self) -> Sequence[ModelView]:
        """Return a view of each model, sorted by the models' namespaces and names."""
        self._follow()
        states = {ModelName(model.namespace, model.name): model.state for model in self._host.report().models}
        views = []
        for name, placement in sorted(self._placements.items()):
            served = placement.served
            info = None if served is None else served.engine.info
            length, task = (None, None) if info is None else (longest_sequence(info), task_of(info))
            stats = None if served is None or served.engine.failure is not None else served.engine.stats
            state = states.get(name)
            views.append(
                ModelView(name, placement.names, placement.created, length, placement.room, stats, state, task, served)
            )
        return views

    def check(self) -> None:
        """Accept every request: a full queue of one model does not concern the others, and the name is not known
        yet."""

    @asynccontextmanager
    async def lease(self, name: str | None, size: int) -> AsyncGenerator[ServedModel, None]:
        """Wait until the model of that name is resident, and keep it so until the context ends. Raises ApiError."""
        placement = self._find(name)
        placement.room.check()
        if (failed := self._tokenizers.failure(placement.source)) is not None:
            raise unusable(failed)
        async with AsyncExitStack() as stack:
            with as_api_errors():
                resident = await stack.enter_async_context(self._host.lease(placement.name, size=size))
            try:
                served = await self._served(placement, resident)
            except Exception as error:
                failed = self._tokenizers.failure(placement.source) or Failure(error, RETRY_AFTER)
                raise unusable(failed) from error
            yield served

    async def follow(self) -> None:
        """Read the tokenizer of each model as soon as its files exist, until cancelled, so that no wake has to read
        one."""
        failed: set[TokenizerSource] = set()
        after = -1
        while True:
            report = await self._host.changed(after, LONG)
            after = report.sequence
            self._follow()
            there = {ModelName(model.namespace, model.name) for model in report.models if model.state in HAS_FILES}
            found = {p.source: p.files for p in self._placements.values() if p.name in there and p.files is not None}
            for source, files in found.items():
                if source not in self._tokenizers and source not in failed and not await self._read(source, files):
                    failed.add(source)

    async def _read(self, source: TokenizerSource, files: ModelFiles) -> bool:
        try:
            await self._tokenizers.get(source, files)
        except Exception:
            logger.exception("the tokenizer of %s cannot be read; requests will try again", source.model)
            return False
        return True

    def taken(self, name: ModelName, spec: ModelSpec) -> tuple[str, ModelName] | None:
        """Return a served name in `spec` that another model has, and that model; None if there is none."""
        self._follow()
        for wanted in served_names(name, spec):
            other = self._names.get(wanted)
            if other is not None and other.name != name:
                return wanted, other.name
        return None

    def _find(self, name: str | None) -> Placement:
        known = self._names.get(name) if name is not None else None
        if known is None or self._host.spec_of(known.name) is not known.spec:
            self._follow()
        if name is None:
            return self._only()
        if name not in self._names:
            raise unknown_model(name, sorted(self._names))
        return self._names[name]

    def _only(self) -> Placement:
        if len(self._placements) != 1:
            raise ApiError(
                "Missing required parameter: 'model'. Only a server with one model accepts requests without it.",
                param="model",
                code="missing_required_parameter",
            )
        return next(iter(self._placements.values()))

    def _follow(self) -> None:
        """Update the placements from the host."""
        before, placed = self._placements, self._host.placed()
        self._placements = {name: before.get(name) or Placement(name, spec) for name, spec in placed.items()}
        self._names = {}
        for key, placement in self._placements.items():
            if placed[key] != placement.spec:
                placement.renew(placed[key])
            placement.spec, placement.files = placed[key], self._host.files_of(key)
            for name in placement.names:
                self._names.setdefault(name, placement)
        self._tokenizers.keep_only({placement.source for placement in self._placements.values()})

    async def _served(self, placement: Placement, resident: Resident) -> ServedModel:
        """Return the model with its tokenizer, created once for each engine."""
        if placement.served is None or placement.serial != resident.serial:
            placement.files = files = resident.files
            tokenizer = await self._tokenizers.get(placement.source, files)
            placement.served = ServedModel(
                names=placement.names,
                engine=resident.engine,
                tokenizer=tokenizer,
                created=placement.created,
                chat_stop=files.chat_stop,
                room=placement.room,
                options=placement.options,
                recommended=recommended(files, placement.options.generation_config),
                about=files.about,
                deployment=placement.name,
            )
            placement.serial = resident.serial
        return placement.served
