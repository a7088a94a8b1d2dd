"""Answers of servers that are compared with each other."""

from __future__ import annotations

from typing import Any

import pytest
from server_support.process import Served

Choices = list[tuple[str, list[float], int]]


def completed(server: Served, prompt: Any, **options: Any) -> Choices:
    """Return the text, the log probabilities and the cached tokens of each choice."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "logprobs": 3, "extra_body": {"ignore_eos": True}}
    answer = server.client.completions.create(**{**body, **options})
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    return [
        (choice.text, [each for each in choice.logprobs.token_logprobs or [] if each is not None], cached)
        for choice in answer.choices
        if choice.logprobs is not None
    ]


def assert_same(one: Choices, other: Choices) -> None:
    assert [(text, cached) for text, _, cached in one] == [(text, cached) for text, _, cached in other]
    for (_, ours, _), (_, theirs, _) in zip(one, other, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
