"""Numbers in sampling fields: taken, or refused with the field's name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.body import parse
from plimsoll_runtime.api.errors import ApiError
from plimsoll_runtime.api.schemas.chat import ChatRequest
from plimsoll_runtime.api.schemas.completions import CompletionRequest

SCHEMAS: dict[Any, dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionRequest: {"model": "m", "prompt": "a"},
}
FIELDS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "deadline",
    "top_k",
    "seed",
    "priority",
    "min_tokens",
)


def params_of(schema: Any, **fields: Any) -> Any:
    body = parse(json.dumps(SCHEMAS[schema] | fields).encode(), schema)
    return body.sampling_params(max_tokens=None, logprobs=None, prompt_logprobs=None)


def refusal_of(schema: Any, field: str, value: Any) -> ApiError | None:
    try:
        params_of(schema, **{field: value})
    except ApiError as refused:
        return refused
    return None


@given(
    st.sampled_from(list(SCHEMAS)),
    st.sampled_from(FIELDS),
    st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 2), st.sampled_from([1e-300, 1e308])),
)
def test_any_number_is_taken_or_refused_by_its_fields_name(schema: Any, field: str, value: float) -> None:
    refused = refusal_of(schema, field, {"1": value} if field == "logit_bias" else value)
    if refused is not None:
        assert (refused.status, str(refused.param).partition(".")[0]) == (400, field)
        assert field in refused.message


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_what_float32_cannot_hold_is_refused(schema: Any, field: str) -> None:
    for value in (5e-324, 1e-300, 1e-45):
        with pytest.raises(ApiError, match=f"Invalid value for '{field}'"):
            params_of(schema, **{field: value})
    for biased in (1e-300, -1e-300):
        with pytest.raises(ApiError, match=r"Invalid value for 'logit_bias'.*too small for float32"):
            params_of(schema, logit_bias={"1": biased})
