"""Requests and outputs of a client: `PromptSender` sends a prompt shared by several requests once, and a `Mailbox`
holds outputs until they are read.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.messages import (
    AddAnswer,
    AddRequest,
    Command,
    DropPrompt,
    RequestOutput,
    SharePrompt,
)
from plimsoll_runtime.engine.protocol.prompt import Prompt


def as_command(request: AddRequest, key: int | None = None) -> AddAnswer:
    """Return the message of a request; with `key`, it refers to a prompt that the engine has."""
    prompt = Prompt.of(request.prompt_token_ids).to_bytes() if key is None else key
    return AddAnswer(request.request_id, prompt, request.context)


@dataclass(slots=True)
class _Shared:
    key: int
    prompt: Prompt
    users: int


class PromptSender:
    """The client's side: sends a shared prompt with the first of its requests, and has it dropped after the last."""

    def __init__(self, send: Callable[[Command], None]) -> None:
        self._send = send
        self._keys = itertools.count()
        self._shared: dict[int, _Shared] = {}

    def add(self, request: AddRequest) -> None:
        """Send a request, and its prompt if the engine does not have it."""
        prompt = request.prompt_token_ids
        if not request.shares_prompt or not isinstance(prompt, Prompt):
            self._send(as_command(request))
            return
        shared = self._shared.get(id(prompt))
        if shared is None:
            shared = self._shared[id(prompt)] = _Shared(next(self._keys), prompt, 0)
            self._send(SharePrompt(shared.key, prompt.to_bytes()))
        shared.users += 1
        self._send(as_command(request, shared.key))

    def done(self, request: AddRequest) -> None:
        """Release the prompt of a finished request."""
        shared = self._shared.get(id(request.prompt_token_ids))
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del self._shared[id(shared.prompt)]
            self._send(DropPrompt(shared.key))


class PromptStore:
    """The engine's side: the prompts to which requests may refer."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def share(self, command: SharePrompt) -> None:
        """Store a prompt."""
        self._prompts[command.key] = Prompt.from_bytes(command.token_ids)

    def drop(self, command: DropPrompt) -> None:
        """Remove a prompt; requests that use it continue."""
        del self._prompts[command.key]

    def request(self, command: AddAnswer) -> AddRequest:
        """Return the request of a message, with its prompt."""
        told = command.prompt
        prompt = self._prompts[told] if isinstance(told, int) else Prompt.from_bytes(told)
        return AddRequest(command.request_id, prompt, command.context)


class Mailbox:
    """Outputs of one request, for one reader. A slow reader gets several at a time and delays nothing else."""

    __slots__ = ("_error", "_outputs", "_waiter")

    def __init__(self) -> None:
        self._outputs: list[RequestOutput] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all outputs have been taken."""
        return not self._outputs

    def put(self, output: RequestOutput) -> None:
        """Add an output."""
        self._outputs.append(output)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise `error` from `take` after the outputs that are there."""
        self._error = error
        self._wake()

    async def take(self) -> RequestOutput:
        """Wait for outputs, and return all new ones joined into one. Raises the error of `fail`."""
        while not self._outputs:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, []
        return joined(outputs)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def joined(outputs: list[RequestOutput]) -> RequestOutput:
    """Join consecutive outputs of one request."""
    if len(outputs) == 1:
        return outputs[0]
    first, last = outputs[0], outputs[-1]
    return RequestOutput(
        request_id=first.request_id,
        token_ids=[token for output in outputs for token in output.token_ids],
        logprobs=[entry for output in outputs for entry in output.logprobs],
        prompt_logprobs=first.prompt_logprobs,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        cached_tokens=first.cached_tokens,
        error=last.error,
        marks=[mark for output in outputs for mark in output.marks],
    )
