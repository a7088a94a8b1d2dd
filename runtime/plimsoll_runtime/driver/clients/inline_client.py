"""An engine in this process for asyncio, for batch work in which only finished outputs count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from plimsoll_runtime.driver.clients.requests import Mailbox, joined
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, EngineStats, RequestOutput, Vocabulary
from plimsoll_runtime.errors import EngineDeadError, PlimsollError, UsageError


class InlineEngine:
    """Steps an engine core between the event loop's other work. If steps overlap, one runs during that work.

    An output is returned in one piece, unless the request has stop strings, at which its reader may end it early.
    """

    def __init__(self, core: EngineCore) -> None:
        """Bind the client to the running event loop."""
        self._core = core
        self._mailboxes: dict[str, Mailbox] = {}
        self._held: dict[str, list[RequestOutput]] = {}
        self._work = asyncio.Event()
        self._dead = asyncio.Event()
        self._error: PlimsollError | None = None
        self._stepping = asyncio.get_running_loop().create_task(self._step_on())

    @property
    def info(self) -> EngineInfo:
        """Sizes and names of the loaded model."""
        return self._core.info

    @property
    def stats(self) -> EngineStats:
        """Current statistics."""
        return self._core.stats

    @property
    def failure(self) -> PlimsollError | None:
        """The error after which no requests can be served; None while they can."""
        return self._error

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of one request; closing the generator early aborts the request.

        Raises UsageError for a request that cannot be served, EngineDeadError if the engine dies.
        """
        if self._error is not None:
            raise self._error
        name = request.request_id
        if name in self._mailboxes:
            raise UsageError(f"request id {name!r} is in use; give every request a unique id")
        whole = not request.context.params.stop
        context = msgspec.structs.replace(request.context, final_only=whole)
        self._core.add(msgspec.structs.replace(request, context=context))
        mailbox = self._mailboxes[name] = Mailbox()
        if whole:
            self._held[name] = []
        self._work.set()
        finished = False
        try:
            while not finished:
                output = await mailbox.take()
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._mailboxes[name]
            self._held.pop(name, None)
            if not finished:
                self._core.abort([name])

    def use(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary for constraints, before the first request with one. Further calls do nothing."""
        self._core.use(vocabulary)

    def drain(self) -> None:
        """Do nothing: this engine has no other members."""

    @property
    def pid(self) -> None:
        """The engine runs in this process."""
        return None

    async def wait_dead(self) -> None:
        """Return when the engine can serve no more requests."""
        await self._dead.wait()

    async def stop(self) -> None:
        """Stop stepping. Running requests raise EngineDeadError."""
        self._stepping.cancel()
        await asyncio.gather(self._stepping, return_exceptions=True)
        self._lose(EngineDeadError("the engine was stopped"))

    async def _step_on(self) -> None:
        while True:
            if not self._core.has_work:
                self._work.clear()
                await self._work.wait()
            try:
                outputs = self._core.step().outputs
            except Exception as error:  # noqa: BLE001 (waiting requests must get any error)
                dead = EngineDeadError(f"the engine failed with {type(error).__name__}: {error}")
                self._lose(error if isinstance(error, PlimsollError) else dead)
                return
            for output in outputs:
                self._hand_on(output)
            await asyncio.sleep(0)

    def _hand_on(self, output: RequestOutput) -> None:
        mailbox = self._mailboxes.get(output.request_id)
        if mailbox is None:
            return
        held = self._held.get(output.request_id)
        if held is None:
            mailbox.put(output)
            return
        held.append(output)
        if output.finish_reason is not None:
            mailbox.put(joined(held))

    def _lose(self, error: PlimsollError) -> None:
        if self._error is not None:
            return
        self._error = error
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)
        self._dead.set()
