"""Finds faults in responses: failures of the server, and responses that its OpenAPI document does not describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from fuzz.requests import Fuzzed
from fuzz.wire import Answer

LATE = 504
ANTHROPIC = "anthropic-version"


class Judge:
    """Checks responses against the OpenAPI document of a server."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._validators: dict[str, Draft202012Validator] = {}

    def complaint(self, asked: Fuzzed, answer: Answer) -> str | None:
        """Return what is wrong with a response, or None."""
        if answer.status is None:
            return "no answer" if asked.answered else None
        if answer.status >= 500 and not (answer.status == LATE and asked.dated):
            return f"{answer.status}: {_shown(answer.body)}"
        if not answer.whole:
            return None if asked.hang_up is not None else f"{answer.status} that was cut short"
        if asked.data.startswith(b"HEAD "):
            return None
        if answer.status >= 400:
            return self._of_error(asked, answer)
        return None if asked.operation is None else self._of_answer(asked.operation, asked, answer)

    def _of_error(self, asked: Fuzzed, answer: Answer) -> str | None:
        """Return what is wrong with an error response (4xx), or None. Errors of the HTTP layer (invalid framing) have a
        line of text instead of JSON.
        """
        if answer.media != "application/json":
            return None if not asked.answered and answer.body else f"{answer.status} in {answer.media!r}"
        kind = "AnthropicError" if b'"type":"error"' in answer.body[:20] else "ErrorAnswer"
        wrong = self._unlike({"$ref": f"#/components/schemas/{kind}"}, json.loads(answer.body))
        if wrong is None and len(json.loads(answer.body)["error"]["message"]) < 10:
            wrong = "an error that says nothing"
        return wrong and f"{answer.status}: {wrong}"

    def _of_answer(self, operation: tuple[str, str], asked: Fuzzed, answer: Answer) -> str | None:
        method, path = operation
        told = self._document["paths"][path][method]["responses"]["200"]["content"].get(answer.media)
        if answer.status != 200 or told is None:
            return f"{answer.status} in {answer.media!r}, which the document does not have"
        if answer.media == "text/event-stream":
            return self._of_stream(told["schema"]["x-event"], asked, answer.body)
        if answer.media != "application/json" or "schema" not in told:
            return None
        return self._unlike(told["schema"], json.loads(answer.body))

    def _of_stream(self, schema: Any, asked: Fuzzed, body: bytes) -> str | None:
        *events, rest = body.decode().split("\n\n")
        if rest or not events:
            return f"a stream that ends with {rest[-100:]!r}"
        if any("\ndata: [DONE]" in f"\n{event}" for event in events[:-1]):
            return "events after data: [DONE]"
        for event in events:
            data = event.rpartition("data: ")[2]
            if data == "[DONE]" or event.startswith(":"):
                continue
            value = json.loads(data)
            if failed := _failure(value):
                if asked.dated and "deadline" in failed:
                    continue
                return f"in the stream: {failed}"
            if wrong := self._unlike(schema, value):
                return f"event {wrong}"
        return None

    def _unlike(self, schema: Any, value: Any) -> str | None:
        """Return a message about the value's first violation of its schema, or None."""
        name = json.dumps(schema)
        if name not in self._validators:
            self._validators[name] = Draft202012Validator({**schema, "components": self._document["components"]})
        error = next(iter(self._validators[name].iter_errors(value)), None)
        return error and f"{_shown(json.dumps(value).encode())} is not as described: {error.message[:300]}"


def _failure(event: Mapping[str, Any]) -> str | None:
    """Return the message of the server failure that an event reports, or None."""
    error = event.get("error") or (event.get("response") or {}).get("error")
    if event.get("type") == "error" and error is None:
        error = event
    return None if error is None else str(error.get("message"))


def _shown(body: bytes) -> str:
    return body[:300].decode(errors="replace")
