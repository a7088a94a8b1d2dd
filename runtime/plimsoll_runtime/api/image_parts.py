"""What becomes of images in conversations: models here read text only (`--image-parts`)."""

from __future__ import annotations

from typing import Literal

ImageParts = Literal["refuse", "describe"]
"""An image is a 400, or the model is told that one was left out."""
IMAGE_KINDS = ("image_url", "input_image", "image")
"""What chats, responses and messages call the type of such a part."""
LEFT_OUT = "[An image was left out: this model reads text only.]"
"""What a model is shown in place of one."""


def why_refused(noun: str, kind: str) -> str:
    """In words for the client; `noun`: what its API calls a part."""
    return (
        f"a {noun} of the type {kind!r} is not supported: this model reads text only. Leave it out; a server that is "
        "started with --image-parts describe tells the model that an image was left out"
    )
