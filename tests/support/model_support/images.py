"""Default facts of an image for tests that do not depend on them."""

from __future__ import annotations

from plimsoll_runtime.weights.image import FileStamp, ImageFacts

FACTS = ImageFacts(
    model="demo://m",
    revision=None,
    files=[FileStamp("/m/model.safetensors", 7, 8)],
    config=b"{}",
    config_digest="d",
    dtype="bfloat16",
    device="cpu",
    instructions="avx2",
    library="lib.so",
    backends=["cpu"],
    eos_token_ids=[1, 106],
    code="0.1.0",
)
