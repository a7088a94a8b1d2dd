"""What an engine gives that generates nothing: vectors, scores or labels, as its server must know it."""

from __future__ import annotations

from typing import Literal

import msgspec

TASKS = ("auto", "generate", "embed", "classify", "score")
Task = Literal["generate", "embed", "classify", "score"]
"""generate: tokens. embed: vectors. classify: labels. score: how well two texts go together, by one number."""

Scale = Literal["none", "sigmoid", "softmax"]
"""What is made of raw scores unless a request wants them as they are."""


class PoolingInfo(msgspec.Struct, frozen=True):
    """`size`: numbers of a prompt's vector, or labels. Vectors may be cut to `dimensions` where there are some.

    `any_dimensions`: to any number of them. `labels` in the order of their scores. `prompts` by name are put before
    texts, the one called `default_prompt` where a request names none. `scale`: see Scale. `whole`: a prompt is computed
    in one step. `every_token`: all of a prompt's hidden states are read, so that no prefix of it can be spared.
    `lower_case`: texts are to be written small. `by_tokens`: what comes of a pair is the logits of a token
    that speaks against it and of one that speaks for it, or of the latter alone.
    """

    task: Task
    size: int
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] = ()
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    scale: Scale = "none"
    normalised: bool = False
    whole: bool = False
    any_dimensions: bool = False
    every_token: bool = False
    lower_case: bool = False
    by_tokens: bool = False
