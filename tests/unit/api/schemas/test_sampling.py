"""Numbers in sampling fields: accepted, or refused with the field's name."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.api.http.body import parse
from plimsoll_runtime.api.http.errors import ApiError
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


@settings(deadline=None)
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


@pytest.mark.parametrize(("options", "most"), [({}, 300), ({"max_logit_bias": 7}, 7)])
async def test_as_many_biases_as_the_server_takes(run_server: Any, options: dict[str, int], most: int) -> None:
    async with run_server(**options) as server, server.http() as http:
        server.engine.info = msgspec.structs.replace(server.engine.info, vocab_size=1000)
        for path, body in (("/v1/chat/completions", ChatRequest), ("/v1/completions", CompletionRequest)):
            for count, status in ((most, 200), (most + 1, 400)):
                bias = {str(token): 1.0 for token in range(count)}
                answer = await http.post(path, json=SCHEMAS[body] | {"model": "fake", "logit_bias": bias})
                assert answer.status_code == status, answer.text
            error = answer.json()["error"]
            assert error["param"] == "logit_bias"
            assert f"has {most + 1} token ids" in error["message"]
            assert f"limit of {most} (--max-logit-bias)" in error["message"]
