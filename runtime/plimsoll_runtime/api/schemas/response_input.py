"""The input of a response: a text, or items. OpenAI's other kinds of items are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from plimsoll_runtime.api.schemas.chat import MAX_MESSAGES
from plimsoll_runtime.api.schemas.constraints import type_of
from plimsoll_runtime.api.schemas.parts import (
    IMAGE_KINDS,
    MAX_PARTS,
    PART_FORMS,
    PARTS,
    REFUSAL,
    TEXT,
    ImagePart,
    RefusalPart,
    content_form,
)
from plimsoll_runtime.api.schemas.response import Status
from plimsoll_runtime.api.schemas.sampling import Lenient, NoEffect
from plimsoll_runtime.api.schemas.tools import CalledArguments

Id = Annotated[str, Field(max_length=256)]
NEVER: dict[str, Any] = {"not": {}}
_Text = Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]


def _kind(value: Any) -> Any:
    if value not in get_args(_Text):
        raise ValueError(f"a part of the type {str(value)[:40]!r} is not supported; this model reads text only")
    return value


class GivenText(Lenient):
    """A text part of a message, of a tool call's result or of reasoning. `annotations` and `logprobs`, which parts of
    our output have, have no effect."""

    type: Annotated[_Text, BeforeValidator(_kind)]
    text: str
    annotations: NoEffect = None
    logprobs: NoEffect = None

    @property
    def shown(self) -> str:
        """The text for the model."""
        return self.text


def _part_form(part: Any) -> str:
    """Return the tag of a part's type. An unknown type gets the tag of text, whose errors name the type."""
    kind = type_of(part)
    return PART_FORMS[kind] if kind in (REFUSAL, *IMAGE_KINDS) else PART_FORMS["text"]


GivenPart = Annotated[
    Annotated[GivenText, Tag(PART_FORMS["text"])]
    | Annotated[RefusalPart, Tag(PART_FORMS[REFUSAL])]
    | Annotated[ImagePart, Tag(PART_FORMS[IMAGE_KINDS[0]])],
    Discriminator(_part_form),
]
GivenParts = Annotated[list[GivenPart], Field(max_length=MAX_PARTS)]
GivenTexts = Annotated[list[GivenText], Field(max_length=MAX_PARTS)]
GivenContent = Annotated[Annotated[str, Tag(TEXT)] | Annotated[GivenParts, Tag(PARTS)], Discriminator(content_form)]
"""A text, or a list of parts."""


class GivenMessage(Lenient):
    """A message of any role."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: GivenContent
    id: Id | None = None
    status: Status | None = None


class GivenCall(Lenient):
    """A tool call of the model. `arguments` are a JSON object as text, or the start of one."""

    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(max_length=256)]
    arguments: CalledArguments
    id: Id | None = None
    status: Status | None = None


class GivenOutput(Lenient):
    """The result of a tool call."""

    type: Literal["function_call_output"]
    call_id: Id
    output: GivenContent
    id: Id | None = None
    status: Status | None = None


class GivenReasoning(Lenient):
    """The model's reasoning."""

    type: Literal["reasoning"]
    summary: GivenTexts | None = None
    content: GivenTexts | None = None
    id: Id | None = None
    status: Status | None = None
    encrypted_content: str | None = None


class GivenReference(Lenient):
    """A reference to an item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: Id


def _refuse(item: Any) -> Any:
    if not isinstance(item, dict):
        raise ValueError("must be an object")
    kind = item.get("type")
    if kind is None:
        raise ValueError("must have a type, or a role if it is a message")
    raise ValueError(f"an item of the type {str(kind)[:40]!r} is not supported")


Refused = Annotated[Any, BeforeValidator(_refuse), WithJsonSchema(NEVER)]
ITEMS = {
    "message": "(message)",
    "function_call": "(function call)",
    "function_call_output": "(function call output)",
    "reasoning": "(reasoning)",
    "item_reference": "(item reference)",
}
"""Tags of items, by type; pydantic inserts them into the locations of errors."""
OTHER = "(other)"


def _item(item: Any) -> str:
    """Return the tag of an item. Messages and references may lack a type."""
    if not isinstance(item, dict):
        return OTHER
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    return ITEMS.get(kind, OTHER) if isinstance(kind, str) else OTHER


GivenItem = Annotated[
    Annotated[GivenMessage, Tag(ITEMS["message"])]
    | Annotated[GivenCall, Tag(ITEMS["function_call"])]
    | Annotated[GivenOutput, Tag(ITEMS["function_call_output"])]
    | Annotated[GivenReasoning, Tag(ITEMS["reasoning"])]
    | Annotated[GivenReference, Tag(ITEMS["item_reference"])]
    | Annotated[Refused, Tag(OTHER)],
    Discriminator(_item),
]
GivenItems = Annotated[list[GivenItem], Field(max_length=MAX_MESSAGES)]
ITEM_LIST = "(items)"


def _input_form(given: Any) -> str:
    return ITEM_LIST if isinstance(given, list) else TEXT


GivenInput = Annotated[Annotated[str, Tag(TEXT)] | Annotated[GivenItems, Tag(ITEM_LIST)], Discriminator(_input_form)]
FORMS = frozenset({*ITEMS.values(), OTHER, ITEM_LIST})
