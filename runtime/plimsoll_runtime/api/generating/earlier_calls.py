"""Calls in earlier messages, in the forms that chat templates take.

A template reads arguments as an object, as a value that it writes as JSON, or as text that it puts between its markers.
Templates of Mistral also take no ids but those of nine characters. No template says which form it takes: it refuses the
others, so the forms are tried in turn, that which changes the least first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from plimsoll_runtime.tools.arguments import beginning_of, value_of

Messages = Sequence[Mapping[str, Any]]

_ID_LENGTH = 9
_NO_OBJECT = "arguments"
"""The name under which an object holds arguments that are none, for templates that take objects only."""


def forms_of(messages: Messages) -> Iterator[Messages]:
    """The messages, whose calls have their arguments as text, in each form. One form where nothing is called."""
    forms: list[Messages] = []
    for identify in (_as_they_are, _with_short_ids):
        for arguments in (value_of, _object, _text):
            form = _with(identify(messages), arguments)
            if form not in forms:
                forms.append(form)
                yield form


def _with(messages: Messages, arguments: Callable[[str], Any]) -> Messages:
    """The messages with their arguments in a form."""

    def shown(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": arguments(function["arguments"])}}

    return [
        {**message, "tool_calls": [shown(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _as_they_are(messages: Messages) -> Messages:
    return messages


def _with_short_ids(messages: Messages) -> Messages:
    """The messages with ids of nine characters, the same for a call and its result."""

    def shown(call: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**call, "id": _short(call["id"])} if "id" in call else call

    return [
        {
            **message,
            **({"tool_calls": [shown(call) for call in message["tool_calls"]]} if message.get("tool_calls") else {}),
            **({"tool_call_id": _short(message["tool_call_id"])} if message.get("tool_call_id") else {}),
        }
        for message in messages
    ]


def _object(text: str) -> dict[str, Any]:
    """An object in any case: of a cut one the fields that can be read; what is none stands in one field."""
    value = value_of(text)
    if isinstance(value, dict):
        return value
    found = beginning_of(text) if isinstance(value, str) else None
    return {_NO_OBJECT: value} if found is None else found


def _text(text: str) -> str:
    return text or "{}"


def _short(call_id: str) -> str:
    return call_id if len(call_id) == _ID_LENGTH else blake2b(call_id.encode()).hexdigest()[:_ID_LENGTH]
