"""Sampling defaults of a model's files: applied, or rejected with the value and advice."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.text.generation_config import FIELDS, LARGEST_TOP_K, recommended
from plimsoll_runtime.weights.files import ModelFiles

ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from([0, 1, 0.5])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)


def files(**said: Any) -> ModelFiles:
    return ModelFiles("m", Path("m"), "safetensors", config={}, weights=(), generation_config=said)


def test_settings_for_sampling_are_read_and_the_rest_is_not() -> None:
    said = files(temperature=0.6, top_p=0.95, top_k=20.0, min_p=None, do_sample=False, max_new_tokens=5, eos_token_id=1)
    found = recommended(said)
    assert found == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert type(found["top_k"]) is int
    assert recommended(said, "none") == {}


@given(st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
def test_whatever_a_file_says_is_a_default_that_requests_may_have_or_an_error_that_names_it(
    said: dict[str, Any],
) -> None:
    try:
        found = recommended(files(**said))
    except ModelError as error:
        told = str(error)
    else:
        assert found == {field: value for field, value in said.items() if value is not None}
        SamplingParams(**found)  # type: ignore[arg-type]
        return
    bad = next(field for field in FIELDS if f"generation_config has {field} " in told)
    assert repr(said[bad])[:64] in told
    assert "--generation-config none" in told


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("temperature", "0.7", "must be a number"),
        ("temperature", True, "must be a number"),
        ("temperature", -0.1, "must be at least 0 and at most 100"),
        ("temperature", math.nan, "not nan"),
        ("temperature", 10**400, "must be a number that fits in 64 bits"),
        ("top_p", 1.5, "at most 1"),
        ("top_k", 2.5, f"must be an integer of at most {LARGEST_TOP_K}"),
        ("top_k", LARGEST_TOP_K + 1, f"must be an integer of at most {LARGEST_TOP_K}"),
        ("top_k", math.inf, "must be an integer"),
        ("top_k", -2, "must be -1 or 0"),
        ("repetition_penalty", 0, "must be at least 0.01"),
    ],
)
def test_what_a_request_may_not_have_is_no_default(field: str, value: Any, reason: str) -> None:
    with pytest.raises(ModelError) as refused:
        recommended(files(**{field: value}))
    assert reason in str(refused.value)
    assert recommended(files(**{field: value}), "none") == {}
