"""Errors found in the config have the same text as those of loading the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from model_support.configs import LLAMA

from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.errors import ModelError, PlimsollError, UsageError
from plimsoll_runtime.models.compose.pooling import served_as
from plimsoll_runtime.models.registry.tasks import task_of
from plimsoll_runtime.models.validation.config import check_config

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
}
OWN = {"auto_map": {"AutoModelForCausalLM": "modeling.Foo"}}
REFUSED: list[tuple[Mapping[str, Any], dict[str, Any]]] = [
    ({"architectures": ["FooForCausalLM"], "model_type": "foo"}, {}),
    ({"architectures": ["FooForCausalLM"], "model_type": "foo", **OWN}, {}),
    ({"architectures": ["FooForCausalLM"]}, {}),
    ({"model_type": "gemma4_assistant"}, {}),
    ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True}, {}),
    ({**LLAMA, "quantization_config": {"quant_method": "awq"}}, {}),
    ({**LLAMA, "model_type": "xglm", "architectures": None, "quantization_config": {"quant_method": "fp8"}}, {}),
    ({**LLAMA, "num_attention_heads": "four"}, {}),
    ({**LLAMA, "hidden_size": None}, {}),
    (LLAMA, {"task": "classify"}),
    (LLAMA, {"task": "sing"}),
    (BERT, {"task": "generate"}),
    (BERT, {"model_impl": "transformers"}),
    ({**BERT, "num_hidden_layers": -1}, {}),
    ({**LLAMA, "architectures": ["LlamaModel"], "rope_scaling": {"rope_type": "nonsense"}}, {}),
]


def refusal(config: dict[str, Any], options: dict[str, Any]) -> PlimsollError:
    with pytest.raises(PlimsollError) as refused:
        check_config(config, task=options.get("task", "auto"), impl=options.get("model_impl", "auto"))
    return refused.value


@pytest.mark.parametrize(("config", "options"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_is_said_early_is_what_loading_says(config: dict[str, Any], options: dict[str, Any]) -> None:
    early = refusal(config, options)
    with pytest.raises(type(early)) as late:
        outline_of(served_as(config, task_of(config, options.get("task", "auto"))), options.get("model_impl", "auto"))
    assert str(early) == str(late.value)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (LLAMA, {}),
        (LLAMA, {"max_model_len": 4096}),
        (LLAMA, {"task": "embed"}),
        (BERT, {"max_model_len": 512}),
        ({"architectures": ["FooForCausalLM"], "model_type": "foo", **OWN}, {"trusted": True}),
        ({"architectures": ["XGLMForCausalLM"], "model_type": "xglm"}, {}),
        ({**LLAMA, "attention_bias": True, "hidden_act": "quick_gelu"}, {}),
    ],
)
def test_what_may_be_served_is_left_to_the_engine(config: dict[str, Any], options: dict[str, Any]) -> None:
    check_config(config, **options)


@pytest.mark.parametrize(("config", "limit"), [(LLAMA, 4096), (BERT, 512)])
def test_a_length_beyond_the_models_is_refused(config: dict[str, Any], limit: int) -> None:
    with pytest.raises(UsageError, match=f"--max-model-len {limit + 1} exceeds the model's limit of {limit} tokens"):
        check_config(config, max_model_len=limit + 1)


def test_gguf_files_are_served_to_generate() -> None:
    with pytest.raises(ModelError, match="not the task embed"):
        check_config(LLAMA, task="embed", gguf=True)
