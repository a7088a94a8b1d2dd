"""Results of pooling models, which return vectors, scores or labels instead of tokens."""

from __future__ import annotations

from typing import Literal

import msgspec

TASKS = ("auto", "generate", "embed", "classify", "score")
Task = Literal["generate", "embed", "classify", "score"]
"""generate: tokens. embed: vectors. classify: labels. score: one number for how well two texts match."""

Scale = Literal["none", "sigmoid", "softmax"]
"""The function applied to raw scores, unless a request asks for raw ones."""


class PoolingInfo(msgspec.Struct, frozen=True):
    """Properties of a pooling model.

    - `size`: numbers of a vector, or number of labels.
    - `labels`: in the order of their scores.
    - `dimensions`: sizes to which vectors may be cut. `any_dimensions`: they may be cut to any size.
    - `prompts`: texts by name that are put before an input; `default_prompt` names the one used without a choice.
    - `scale`: see Scale.
    - `whole`: each prompt is computed in one step.
    - `every_token`: the result uses the hidden states of all tokens, so cached prefixes cannot be reused.
    - `lower_case`: inputs are converted to lower case.
    - `by_tokens`: the result of a pair of texts is the logits of a "no" and a "yes" token, or of the latter alone.
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
