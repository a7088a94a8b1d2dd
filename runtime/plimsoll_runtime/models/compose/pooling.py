"""Makes programs of pooling models, and the facts that a server needs about these, from the config alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo, Scale, Task
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import ENCODERS
from plimsoll_runtime.models.registry.tasks import (
    TOLD,
    by_tokens,
    is_encoder,
    label_count,
    module_layers,
    modules_of,
    pooled_spec,
    settings_of,
)
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.pooling import Dense, Pooling, TokenScores

SCORE_TOKENS = "score_token_ids"
"""Config key: ids of the tokens whose logits give a score, that of "no" first if there are two."""
_IDENTITY = "Identity"
_OLDER_ACTIVATION = "sbert_ce_default_activation_function"


def served_as(config: Mapping[str, Any], task: Task, score_tokens: Sequence[int] = (0, 1)) -> Mapping[str, Any]:
    """Return the config as a weight image stores it: with the task, and with the token ids whose logits give a
    reranker's score.

    The task `generate` leaves it unchanged. The default ids are placeholders: memory does not depend on them, but the
    engine needs the real ones.
    """
    if task == "generate":
        return config
    tokens = {SCORE_TOKENS: list(score_tokens)} if by_tokens(config, task) else {}
    return {**config, TOLD: task, **tokens}


def pooled_program(config: Mapping[str, Any], task: Task, max_model_len: int | None = None) -> Program:
    """Return the program of a pooling model. Raises ModelError if the model does not support the task."""
    spec = pooled_spec(config)
    return program_of(spec, max_model_len, pooling_of(config, task, spec))


def pooling_of(config: Mapping[str, Any], task: Task, spec: DecoderSpec) -> Pooling:
    """Return the pooling of a model for a task."""
    if task == "embed":
        return _embedded(config, spec)
    if tokens := config.get(SCORE_TOKENS):
        return Pooling("last", (TokenScores(tuple(tokens)),))
    labels = label_count(config)
    if is_encoder(config):
        return ENCODERS[str(config["model_type"])].head(config, labels)
    return Pooling("last", (Dense("score", labels, bias=False),))


def pooling_info(config: Mapping[str, Any], task: Task, program: Program) -> PoolingInfo:
    """Return the facts about a pooling model that the server needs. Raises ModelError if the config has them in an
    unknown form.
    """
    pooling, settings = program.facts.pooling, settings_of(config)
    assert pooling is not None
    dimensions, any_number = _dimensions(config)
    return PoolingInfo(
        task=task,
        size=1 if task == "score" else program.outputs,
        labels=_labels(config) if task == "classify" else (),
        dimensions=dimensions if task == "embed" else (),
        any_dimensions=any_number and task == "embed",
        prompts=_prompts(settings),
        default_prompt=_default_prompt(settings),
        scale=_scale(config, task),
        normalised=pooling.normalised,
        whole=bool(program.facts.whole),
        every_token=bool(program.facts.whole) or pooling.kind != "last",
        lower_case=bool(settings.get("do_lower_case")),
        by_tokens=bool(config.get(SCORE_TOKENS)),
    )


def _embedded(config: Mapping[str, Any], spec: DecoderSpec) -> Pooling:
    """Return the pooling that the model's sentence-transformers modules define.

    Without modules: the mean of the hidden states if attention is bidirectional, else the last one; normalised.
    """
    modules = modules_of(config)
    if modules:
        return module_layers(modules)
    whole = any(shape.whole for shape in spec.attention)
    return Pooling("mean" if whole else "last", normalised=True)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return label names in the order of their scores; `LABEL_n` for those without a name."""
    named = config.get("id2label")
    count = label_count(config)
    if not isinstance(named, Mapping):
        return tuple(f"LABEL_{number}" for number in range(count))
    return tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(count))


def _scale(config: Mapping[str, Any], task: Task) -> Scale:
    """Return the name of the function that turns scores into results, as in Transformers' pipelines and
    sentence-transformers' cross-encoders; `none` for embeddings.
    """
    if task == "embed":
        return "none"
    if task == "score":
        own = config.get("sentence_transformers")
        said = (
            settings_of(config).get("activation_fn")
            or (own.get("activation_fn") if isinstance(own, Mapping) else None)
            or config.get(_OLDER_ACTIVATION)
            or "Sigmoid"
        )
        name = str(said).rpartition(".")[2]
        if name not in (_IDENTITY, "Sigmoid"):
            raise UnsupportedFieldError(
                f"the activation function {said!r} for scores is not supported (only Sigmoid, Identity)"
            )
        return "none" if name == _IDENTITY else "sigmoid"
    kinds: Mapping[Any, Scale] = {"regression": "none", "multi_label_classification": "sigmoid"}
    return kinds.get(config.get("problem_type"), "softmax" if label_count(config) > 1 else "sigmoid")


def _dimensions(config: Mapping[str, Any]) -> tuple[tuple[int, ...], bool]:
    """Return the lengths to which vectors may be cut, and whether any length is allowed."""
    listed = config.get("matryoshka_dimensions")
    if listed is None:
        return (), bool(config.get("is_matryoshka"))
    if not isinstance(listed, list) or not all(type(each) is int and each > 0 for each in listed):
        raise ModelError(f"config.json: matryoshka_dimensions is {listed!r}; it must be a list of positive integers")
    return tuple(sorted(listed)), False


def _prompts(settings: Mapping[str, Any]) -> dict[str, str]:
    given = settings.get("prompts") or {}
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in given.values()):
        raise ModelError("config_sentence_transformers.json: prompts must be an object of strings")
    return dict(given)


def _default_prompt(settings: Mapping[str, Any]) -> str | None:
    name = settings.get("default_prompt_name") or None
    if name is not None and name not in _prompts(settings):
        raise ModelError(f"config_sentence_transformers.json: default_prompt_name {name!r} is not one of the prompts")
    return name
