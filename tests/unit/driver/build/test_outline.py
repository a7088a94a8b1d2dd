"""The choice of a model's code: Plimsoll's, Transformers' for unsupported fields, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from model_support.tiny import COMMON

from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline

VALUES: dict[str, Any] = {**COMMON, "qk_layernorm": True, "partial_rotary_factor": 0.5}
STABLE: dict[str, Any] = {
    **transformers.StableLmConfig(**VALUES).to_dict(),
    "architectures": ["StableLmForCausalLM"],
}


def test_a_field_that_our_program_does_not_know_is_for_transformers_code(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(outline_of(STABLE), TransformersOutline)
    assert "qk_layernorm = True is not supported (only False) in Plimsoll's own implementation" in caplog.text
    assert "StableLmForCausalLM runs on Transformers code" in caplog.text
    assert isinstance(outline_of({**STABLE, "qk_layernorm": False}), Program)


@pytest.mark.parametrize("options", [{"impl": "native"}, {"gguf": True}])
def test_where_theirs_is_not_wanted_or_cannot_read_the_file_the_field_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFieldError, match=r"qk_layernorm = True is not supported \(only False\)$"):
        outline_of(STABLE, **options)


def test_a_field_that_nobody_knows_is_refused_with_both_reasons() -> None:
    with pytest.raises(
        UnsupportedFieldError, match=r"hidden_act = 'wobble' .*; Transformers code cannot serve it either"
    ):
        outline_of({**STABLE, "qk_layernorm": False, "hidden_act": "wobble"})


def test_what_is_plainly_wrong_is_asked_of_nobody_else() -> None:
    with pytest.raises(ModelError, match=r"num_hidden_layers is 1000000000; it must be from 1 to 4096$"):
        outline_of({**STABLE, "num_hidden_layers": 10**9, "qk_layernorm": False})


@pytest.mark.parametrize("layers", [10**9, 0])
def test_transformers_code_is_not_asked_for_layers_without_end(layers: int) -> None:
    with pytest.raises(ModelError, match=f"num_hidden_layers is {layers}; it must be from 1 to 4096"):
        outline_of({**STABLE, "num_hidden_layers": layers}, "transformers")
