"""Detection of a checkpoint's task, and rejection of unsupported modules by name."""

from typing import Any

import pytest

from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.errors import ModelError, PlimsollError, UnsupportedFieldError, UsageError
from plimsoll_runtime.models.compose.pooling import pooled_program, pooling_info
from plimsoll_runtime.models.registry.tasks import TOLD, module_layers, task_of
from plimsoll_runtime.models.spec.pooling import Dense, Pooling
from plimsoll_runtime.weights.files import PARTS

SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 20}
BERT = {**SIZES, "model_type": "bert", "architectures": ["BertModel"]}
QWEN = {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 12}


def modules(*kinds: str, config: Any = None) -> dict[str, Any]:
    found = [{"kind": kind, "path": f"{i}_{kind}" if i else "", "config": {}} for i, kind in enumerate(kinds)]
    for module in found:
        if module["kind"] == "Pooling":
            module["config"] = {"pooling_mode": "mean"} if config is None else config
    return {PARTS: {"modules": found}}


@pytest.mark.parametrize(
    ("config", "task"),
    [
        (QWEN, "generate"),
        ({**SIZES, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "generate"),
        ({**SIZES, "model_type": "unheard", "architectures": ["UnheardModel"]}, "generate"),
        (BERT, "embed"),
        ({**BERT, "architectures": ["BertForMaskedLM"]}, "embed"),
        ({**BERT, "architectures": None}, "embed"),
        ({**QWEN, "architectures": ["Qwen3Model"]}, "embed"),
        ({**QWEN, **modules("Transformer", "Pooling")}, "embed"),
        ({**QWEN, **modules("Transformer", "LogitScore")}, "score"),
        ({**QWEN, "classifier_from_token": ["no", "yes"]}, "score"),
        ({**BERT, "architectures": ["BertForSequenceClassification"]}, "classify"),
        ({**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}}, "score"),
        ({**QWEN, "architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}, "score"),
    ],
)
def test_files_tell_the_task(config: dict[str, Any], task: str) -> None:
    assert task_of(config) == task


@pytest.mark.parametrize(
    ("config", "asked", "reason"),
    [
        (BERT, "generate", "BertModel cannot generate"),
        (BERT, "classify", "has no classification head"),
        (BERT, "score", "has no scoring head"),
        (
            {**BERT, "architectures": ["BertForSequenceClassification"]},
            "score",
            "has 2 labels; scoring needs exactly 1",
        ),
        (BERT, "sing", "must be one of auto, generate, embed, classify, score"),
    ],
)
def test_what_files_do_not_serve_is_refused(config: dict[str, Any], asked: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        task_of(config, asked)


def test_a_decoder_may_be_asked_for_another_task() -> None:
    assert [task_of(QWEN, asked) for asked in ("embed", "score", "generate")] == ["embed", "score", "generate"]


def test_transformers_code_gives_no_vectors() -> None:
    with pytest.raises(UsageError, match="--model-impl transformers supports only generation"):
        outline_of({**QWEN, TOLD: "embed"}, "transformers")
    with pytest.raises(ModelError, match="architecture x is not supported"):
        outline_of({**QWEN, TOLD: "embed", "model_type": "x"})


def test_what_sees_both_ends_generates_nothing() -> None:
    gemma = {**SIZES, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 12}
    with pytest.raises(ModelError, match="has bidirectional attention and cannot generate; serve it with --task embed"):
        outline_of({**gemma, "use_bidirectional_attention": True})
    facts = outline_of({**gemma, "use_bidirectional_attention": True, TOLD: "embed"}).facts
    assert (facts.attention, {shape.window for shape in facts.whole}) == ((), {2049})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (modules("Pooling"), "must start with Transformer and Pooling"),
        (modules("Transformer", "Pooling", "CNN"), "the module CNN is not supported"),
        (modules("Transformer", "Pooling", "Normalize", "Dense"), "the module Dense is not supported"),
        (modules("Transformer", "Pooling", config={}), r"the pooling \(none\) is not supported"),
        (modules("Transformer", "Pooling", config={"pooling_mode": "max"}), "the pooling max is not supported"),
        (modules("Transformer", "Pooling", config={"pooling_mode": ["cls", "mean"]}), "is not supported"),
        (modules("Transformer", "Pooling", config={"pooling_mode_max_tokens": True}), "pooling_mode_max_tokens"),
        (
            modules("Transformer", "Pooling", config={"pooling_mode": "mean", "include_prompt": False}),
            "include_prompt = False is not supported",
        ),
        (modules("Transformer", "Pooling", config=[]), "is not a JSON object"),
        (modules("Transformer", "Pooling", "Dense"), "out_features is missing"),
        ({PARTS: {"modules": [], "max_seq_length": "x"}}, "max_seq_length is 'x'"),
        ({"matryoshka_dimensions": [0]}, "matryoshka_dimensions is"),
        ({PARTS: {"modules": [], "prompts": {"a": 1}}}, "prompts must be an object of strings"),
        ({PARTS: {"modules": [], "default_prompt_name": "q"}}, "default_prompt_name 'q' is not one of the prompts"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder = True is not supported"),
    ],
)
def test_what_cannot_be_served_is_named(said: dict[str, Any], reason: str) -> None:
    config = {**BERT, **said}
    with pytest.raises(PlimsollError, match=reason):
        pooling_info(config, "embed", pooled_program(config, "embed"))


def test_modules_become_layers() -> None:
    dense = {"out_features": 5, "activation_function": "torch.nn.modules.linear.Identity", "bias": False}
    rows = [
        {"kind": "Transformer", "path": "", "config": {}},
        {"kind": "Pooling", "path": "1_Pooling", "config": {"pooling_mode_lasttoken": True}},
        {"kind": "Dense", "path": "2_Dense", "config": dense},
        {"kind": "Normalize", "path": "3_Normalize", "config": {}},
    ]
    assert module_layers(rows) == Pooling("last", (Dense("2_Dense.linear", 5, False),), True)
    with pytest.raises(UnsupportedFieldError, match="activation_function Softsign"):
        module_layers([*rows[:2], {**rows[2], "config": {**dense, "activation_function": "torch.nn.Softsign"}}])


@pytest.mark.parametrize(
    ("said", "size", "scale", "labels"),
    [
        ({}, 2, "softmax", ("LABEL_0", "LABEL_1")),
        ({"id2label": {"0": "bad", "1": "good", "2": "odd"}}, 3, "softmax", ("bad", "good", "odd")),
        ({"num_labels": 4, "problem_type": "multi_label_classification"}, 4, "sigmoid", None),
        ({"num_labels": 2, "problem_type": "regression"}, 2, "none", None),
    ],
)
def test_labels_and_what_scores_become(
    said: dict[str, Any], size: int, scale: str, labels: tuple[str, ...] | None
) -> None:
    config = {**BERT, "architectures": ["BertForSequenceClassification"], **said}
    info = pooling_info(config, "classify", pooled_program(config, "classify"))
    assert (info.size, info.scale, len(info.labels)) == (size, scale, size)
    assert labels is None or info.labels == labels


def test_scores_are_scaled_as_the_files_say() -> None:
    config = {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 1}
    for said, scale in (
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        ({PARTS: {"modules": [], "activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
    ):
        told = {**config, **said}
        assert pooling_info(told, "score", pooled_program(told, "score")).scale == scale
    told = {**config, "sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}
    program = pooled_program(told, "score")
    with pytest.raises(UnsupportedFieldError, match=r"activation function .* for scores"):
        pooling_info(told, "score", program)


def test_texts_are_as_long_as_the_files_say() -> None:
    facts = pooled_program({**BERT, PARTS: {"modules": [], "max_seq_length": 128}}, "embed").facts
    assert facts.max_positions == 128
    assert pooled_program(BERT, "embed").facts.max_positions == 512
