"""Errors of /v1/responses, which name the fields of its requests, and the ids of responses and items."""

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
"""Names that /v1/responses has for fields of a chat."""
_FIRST = re.compile(r"[a-z_]+")


@contextmanager
def in_terms_of_responses() -> Iterator[None]:
    """Rename fields of a chat in the block's errors to those of /v1/responses."""
    try:
        yield
    except ApiError as error:
        raise renamed(error) from error


def renamed(error: ApiError) -> ApiError:
    """Return the error with its field's name in /v1/responses. Fields of messages become 'input', because items and
    messages have different indexes."""
    first = _FIRST.match(error.param or "")
    field = FIELDS.get(first[0]) if first else None
    if error.param is None or field is None:
        return error
    message = error.message.replace(f"'{error.param}'", f"'{field}'")
    return ApiError(message, status=error.status, param=field, code=error.code, headers=error.headers)


def not_found(response: str) -> ApiError:
    """Return the error (404) for a response that does not exist or belongs to another owner."""
    return ApiError(
        f"Response with id '{response[:100]}' not found: it was not stored here, or has been deleted.",
        status=HTTPStatus.NOT_FOUND,
        code="response_not_found",
    )


def not_kept() -> ApiError:
    """Return the error (507) for a response that does not fit into the store or cannot be written."""
    return ApiError(
        "The response cannot be stored; the store is full or cannot be written.",
        status=HTTPStatus.INSUFFICIENT_STORAGE,
        code="not_kept",
    )


def previous_not_found(response: str) -> ApiError:
    """Return the error (400) for a conversation with a missing turn."""
    return ApiError(
        f"Previous response with id '{response[:100]}' not found: it was not stored here, or has been deleted. "
        "Send the conversation in 'input'.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def item_not_found(item: str, where: str) -> ApiError:
    """Return the error (404) for a reference to an item that is not stored."""
    return ApiError(
        f"Item with id '{item[:100]}' not found: its response was not stored here, or has been deleted. Send the item.",
        status=HTTPStatus.NOT_FOUND,
        param=where,
        code="item_not_found",
    )


PLACE_HEADER = "x-plimsoll-place"
"""Header with a gateway's name for this server. Only gateways use it; the server copies it into ids."""
NOWHERE = "0" * 12
"""The place in ids of a server without a gateway."""
_PLACE = re.compile(r"[0-9a-f]{12}")
_ITEM = re.compile(r"(?:msg|fc|fco|rs)_([0-9a-f]{44})([0-9a-f]{1,6})")


def response_id(headers: Mapping[str, str]) -> str:
    """Return a new response id for a request with these headers.

    It contains the place, which is the gateway's name for this server, and 128 random bits.
    """
    place = headers.get(PLACE_HEADER, "")
    return f"resp_{place if _PLACE.fullmatch(place) else NOWHERE}{uuid.uuid4().hex}"


def item_id(kind: str, response: str, number: int) -> str:
    """Return the id of item `number` of a response, counted from the first item of its input to the last of its output.

    It contains the response's id and the number, so that a reference to an item names its response.
    """
    return f"{kind}_{response.removeprefix('resp_')}{number:x}"


def response_of_item(text: str) -> str | None:
    """Return the id of the response that has the item; None for ids in another format."""
    found = _ITEM.fullmatch(text)
    return None if found is None else f"resp_{found[1]}"
