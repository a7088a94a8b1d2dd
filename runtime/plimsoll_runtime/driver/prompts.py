"""Requests on their way to an engine's process: a prompt that several of them share goes there once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from plimsoll_runtime.engine.protocol.messages import AddAnswer, AddRequest, Command, DropPrompt, SharePrompt
from plimsoll_runtime.engine.protocol.prompt import Prompt


def as_command(request: AddRequest, key: int | None = None) -> AddAnswer:
    """The message of a request; with `key`, that of a prompt which the engine has."""
    prompt = Prompt.of(request.prompt_token_ids).to_bytes() if key is None else key
    return AddAnswer(
        request.request_id, prompt, request.params, request.cache_salt, request.arrived_ns, request.second_text
    )


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
        """A request that was added is over."""
        shared = self._shared.get(id(request.prompt_token_ids))
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del self._shared[id(shared.prompt)]
            self._send(DropPrompt(shared.key))


class PromptStore:
    """The engine's side: the prompts that requests to come may name."""

    def __init__(self) -> None:
        self._prompts: dict[int, Prompt] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def share(self, command: SharePrompt) -> None:
        """Keep a prompt."""
        self._prompts[command.key] = Prompt.from_bytes(command.token_ids)

    def drop(self, command: DropPrompt) -> None:
        """Forget a prompt; requests that have it go on."""
        del self._prompts[command.key]

    def request(self, command: AddAnswer) -> AddRequest:
        """The request of a message."""
        told = command.prompt
        prompt = self._prompts[told] if isinstance(told, int) else Prompt.from_bytes(told)
        return AddRequest(
            command.request_id,
            prompt,
            command.params,
            command.cache_salt,
            command.arrived_ns,
            second_text=command.second_text,
        )
