"""Every sampling parameter of the engine can be set by requests, or is listed here as one that cannot."""

from __future__ import annotations

from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.completions import CompletionRequest
from plimsoll_runtime.api.schemas.response_request import ResponseRequest
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams

PARAMETERS = set(SamplingParams.__struct_fields__)
MADE = {"constraint", "thought"}
"""Made from other fields: constraints, tools, and reasoning."""
NOT_IN_RESPONSES = {
    "include_stop_str_in_output",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "min_tokens",
    "prompt_logprobs",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
}
"""OpenAI's Responses have no such field, or one of another name."""


def test_chats_and_completions_have_all() -> None:
    for body in (ChatRequest, CompletionRequest):
        assert PARAMETERS - set(body.model_fields) == MADE


def test_responses_have_all_but_some() -> None:
    assert PARAMETERS - set(ResponseRequest.model_fields) == MADE | NOT_IN_RESPONSES


def test_what_a_chat_sets_reaches_the_engine() -> None:
    """Each field alone, with a value that is not its default."""
    values = {
        "temperature": 0.5,
        "top_p": 0.5,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {5: 1.0},
        "top_k": 5,
        "min_p": 0.5,
        "repetition_penalty": 1.5,
        "min_tokens": 1,
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "priority": 5,
        "deadline": 5.0,
        "stop_token_ids": [5],
    }
    by_argument = {"max_tokens", "logprobs", "prompt_logprobs", "stop"}
    assert set(values) == PARAMETERS - MADE - by_argument
    for name, value in values.items():
        body = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "Hi"}], name: value})
        params = body.sampling_params(max_tokens=9, logprobs=None, prompt_logprobs=None, stop=(), recommended={})
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value), name
