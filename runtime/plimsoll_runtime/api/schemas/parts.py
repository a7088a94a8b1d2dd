"""The content of a chat message: a text, or text, refusal and image parts. Images are refused or left out
(`--image-parts`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from plimsoll_runtime.api.schemas.constraints import type_of
from plimsoll_runtime.api.schemas.sampling import Lenient, NoEffect

IMAGE_KINDS = ("image_url", "input_image", "image")
"""Types of image parts in chats, responses and messages."""
LEFT_OUT = "[An image was left out: this model reads text only.]"
"""Text that the model sees instead of an image."""


def why_refused(noun: str, kind: str) -> str:
    """Return the error for an image. `noun` is what the client's API calls a part."""
    return (
        f"a {noun} of the type {kind!r} is not supported; this model reads text only. Leave it out, or start the "
        "server with --image-parts describe, which tells the model that an image was left out"
    )


MAX_PARTS = 4096
TEXT, PARTS = "(text)", "(parts)"
"""Tags of the two types of content; pydantic inserts them into the locations of errors."""
REFUSAL = "refusal"
PART_FORMS = {"text": "(text part)", REFUSAL: "(refusal part)", **dict.fromkeys(IMAGE_KINDS, "(image part)")}
"""Tags of a part's types; pydantic inserts them into the locations of errors."""


def _kind(value: Any) -> Any:
    if value != "text":
        raise ValueError(f"a part of the type {str(value)[:40]!r} is not supported; this model reads text only")
    return value


class TextPart(Lenient):
    """One of the texts in a message's content."""

    type: Annotated[Literal["text"], BeforeValidator(_kind)]
    text: str

    @property
    def shown(self) -> str:
        """The text for a chat template."""
        return self.text


class RefusalPart(Lenient):
    """The assistant's words when it refused to answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def shown(self) -> str:
        """The text for a chat template."""
        return self.refusal


class ImagePart(Lenient):
    """An image, which no model here reads. It is refused, or described as left out: see `--image-parts`."""

    type: Literal["image_url", "input_image", "image"]
    image_url: NoEffect = None
    file_id: NoEffect = None
    detail: NoEffect = None
    source: NoEffect = None

    @property
    def shown(self) -> str:
        """The text for a chat template."""
        return LEFT_OUT


def content_form(content: Any) -> str:
    """Return the tag of a content's type: PARTS for a list, otherwise TEXT."""
    return PARTS if isinstance(content, list) else TEXT


def _part_form(part: Any) -> str:
    """Return the tag of a part's type. An unknown type gets the tag of text, whose errors name the type."""
    return PART_FORMS.get(type_of(part) or "", PART_FORMS["text"])


Part = Annotated[
    Annotated[TextPart, Tag(PART_FORMS["text"])]
    | Annotated[RefusalPart, Tag(PART_FORMS[REFUSAL])]
    | Annotated[ImagePart, Tag(PART_FORMS[IMAGE_KINDS[0]])],
    Discriminator(_part_form),
]
Content = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[Part], Field(max_length=MAX_PARTS), Tag(PARTS)],
    Discriminator(content_form),
]
"""A text, or a list of parts, which are joined by line ends."""
