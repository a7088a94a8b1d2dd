"""Errors of /v1/responses, in which fields have their names of a request for a response, and the ids of responses and
items.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from plimsoll_runtime.api.http.errors import ApiError

FIELDS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""What a chat's field is called here."""
_FIRST = re.compile(r"[a-z_]+")


@contextmanager
def in_terms_of_responses() -> Iterator[None]:
    """Errors of the block name the fields of the request for a response."""
    try:
        yield
    except ApiError as error:
        raise renamed(error) from error


def renamed(error: ApiError) -> ApiError:
    """The error with the name that its field has in a request for a response. Of a message 'input' alone is named, for
    items have other numbers than the messages that they become.
    """
    first = _FIRST.match(error.param or "")
    field = FIELDS.get(first[0]) if first else None
    if error.param is None or field is None:
        return error
    message = error.message.replace(f"'{error.param}'", f"'{field}'")
    return ApiError(message, status=error.status, param=field, code=error.code, headers=error.headers)


def not_found(response: str) -> ApiError:
    """404: there is none, or it is somebody else's."""
    return ApiError(
        f"Response with id '{response[:100]}' not found: it was never kept here, or is not any more.",
        status=HTTPStatus.NOT_FOUND,
        code="response_not_found",
    )


def not_kept() -> ApiError:
    """507: there is no room for it, or its file cannot be written."""
    return ApiError("The response cannot be kept.", status=HTTPStatus.INSUFFICIENT_STORAGE, code="not_kept")


def previous_not_found(response: str) -> ApiError:
    """400: a conversation cannot go on, for a turn of it is missing."""
    return ApiError(
        f"Previous response with id '{response[:100]}' not found: it was never kept here, or is not any more. "
        "Send the conversation in 'input'.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def item_not_found(item: str, where: str) -> ApiError:
    """404: what an item refers to is not kept."""
    return ApiError(
        f"Item with id '{item[:100]}' not found: its response was never kept here, or is not any more. Send the item.",
        status=HTTPStatus.NOT_FOUND,
        param=where,
        code="item_not_found",
    )


PLACE_HEADER = "x-plimsoll-place"
"""By which a gateway says what it calls this server. It is a hint for the gateway alone: here it means nothing."""
NOWHERE = "0" * 12
"""The place of a server that nobody has called anything."""
_PLACE = re.compile(r"[0-9a-f]{12}")
_ITEM = re.compile(r"(?:msg|fc|fco|rs)_([0-9a-f]{44})([0-9a-f]{1,6})")


def response_id(headers: Mapping[str, str]) -> str:
    """A new one, for a request with these headers.

    It has the place that made it, as the gateway calls that server, and 128 random bits.
    """
    place = headers.get(PLACE_HEADER, "")
    return f"resp_{place if _PLACE.fullmatch(place) else NOWHERE}{uuid.uuid4().hex}"


def item_id(kind: str, response: str, number: int) -> str:
    """Of item `number` of a response, counted from the first of its input to the last of its output.

    It has the response's id and the item's number there, so that a reference to an item names its response.
    """
    return f"{kind}_{response.removeprefix('resp_')}{number:x}"


def response_of_item(text: str) -> str | None:
    """The id of the response that has the item; None for what is no item's id of ours."""
    found = _ITEM.fullmatch(text)
    return None if found is None else f"resp_{found[1]}"
