"""Finds the task of a checkpoint (generate, embed, classify, score), and the spec of a pooling model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from plimsoll_runtime.engine.protocol.pooling import TASKS, Task
from plimsoll_runtime.errors import ModelError, UnsupportedFieldError, UsageError
from plimsoll_runtime.models.families.common.config import saved_class, typed
from plimsoll_runtime.models.registry.registry import ENCODERS, MODEL_TYPES, describe
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.pooling import Dense, HeadActivation, HeadLayer, Pooling, PoolingKind
from plimsoll_runtime.weights.files import PARTS, YES_OR_NO

MODEL, POOLING, DENSE, NORMALISE, DROPOUT = "Transformer", "Pooling", "Dense", "Normalize", "Dropout"
KINDS: Mapping[str, PoolingKind] = {"lasttoken": "last", "cls": "first", "mean": "mean"}
OLDER_KINDS: Mapping[str, PoolingKind | None] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": None,
    "pooling_mode_mean_sqrt_len_tokens": None,
    "pooling_mode_weightedmean_tokens": None,
}
"""Flags in older pooling configs, one for each kind of pooling; None: not supported."""
ACTIVATIONS: Mapping[str, HeadActivation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
}


def module_layers(modules: Sequence[Mapping[str, Any]]) -> Pooling:
    """Return the pooling that sentence-transformers modules define: a model, a pooling, then any dense layers, and
    normalisation last, if any.

    Dropout is ignored. Raises ModelError for other modules or another order.
    """
    kinds = [str(module["kind"]) for module in modules]
    if kinds[:2] != [MODEL, POOLING]:
        raise UnsupportedFieldError(
            f"modules.json starts with {' and '.join(kinds[:2])}; it must start with {MODEL} and {POOLING}"
        )
    layers: list[HeadLayer] = []
    normalised = False
    for kind, module in zip(kinds[2:], modules[2:], strict=True):
        if kind == DENSE and not normalised:
            layers.append(_dense(module))
        elif kind == NORMALISE:
            normalised = True
        elif kind != DROPOUT:
            raise UnsupportedFieldError(f"modules.json: the module {kind} is not supported at this position")
    return Pooling(_pooling_kind(modules[1]), tuple(layers), normalised)


def _pooling_kind(module: Mapping[str, Any]) -> PoolingKind:
    config, file = _config(module), f"{module['path']}/config.json"
    if config.get("include_prompt") is False:
        raise UnsupportedFieldError(f"{file}: include_prompt = False is not supported (only True)")
    mode = config.get("pooling_mode")
    if mode is None:
        flags = [flag for flag in OLDER_KINDS if config.get(flag)]
        found = OLDER_KINDS[flags[0]] if len(flags) == 1 else None
        mode = ", ".join(flags)
    else:
        words = mode if isinstance(mode, list) else [mode]
        found = KINDS.get(str(words[0])) if len(words) == 1 else None
    if found is None:
        raise UnsupportedFieldError(f"{file}: the pooling {mode or '(none)'} is not supported")
    return found


def _dense(module: Mapping[str, Any]) -> Dense:
    config = _config(module)
    said = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if said not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedFieldError(f"{module['path']}: activation_function {said} is not supported (only {known})")
    outputs = typed(config, "out_features", int, None, f"{module['path']}: ")
    bias = typed(config, "bias", bool, default=True)
    return Dense(f"{module['path']}.linear", outputs, bias, ACTIVATIONS[said])


def _config(module: Mapping[str, Any]) -> Mapping[str, Any]:
    config = module["config"]
    if not isinstance(config, Mapping):
        raise ModelError(f"{module['path']}/config.json is not a JSON object")
    return config


TOLD = "task"
"""Key of the task in the config that an image stores."""
LABELLED = "ForSequenceClassification"
BARE, WITH_HEAD = "Model", "LMHeadModel"
"""Class name endings: decoders without a head, and older classes that generate."""
LOGIT_SCORE = "LogitScore"
"""Module of a reranker that scores by the logits of two tokens."""


def task_of(config: Mapping[str, Any], asked: str = "auto") -> Task:
    """Return the task that the user asked for; for "auto" the task detected from the config.

    Raises UsageError if the model does not support the task.
    """
    if asked not in TASKS:
        raise UsageError(f"--task must be one of {', '.join(TASKS)}, not {asked}")
    if asked == "auto":
        return _detected(config)
    labels = has_labels(config)
    if asked == "generate" and (labels or is_encoder(config)):
        raise UsageError(f"--task generate: {saved_class(config)} cannot generate; omit the option")
    if asked == "classify" and not labels:
        raise UsageError(f"--task classify: {saved_class(config)} has no classification head; omit the option")
    if asked == "score" and not labels and is_encoder(config):
        raise UsageError(f"--task score: {saved_class(config)} has no scoring head; omit the option")
    if asked == "score" and labels and label_count(config) != 1:
        raise UsageError(
            f"--task score: {saved_class(config)} has {label_count(config)} labels; scoring needs exactly 1"
        )
    return cast(Task, asked)


def _detected(config: Mapping[str, Any]) -> Task:
    if has_labels(config):
        return "score" if label_count(config) == 1 else "classify"
    kinds = {module["kind"] for module in modules_of(config)}
    if LOGIT_SCORE in kinds or config.get(YES_OR_NO):
        return "score"
    if POOLING in kinds or is_encoder(config) or _is_bare(config):
        return "embed"
    return "generate"


def _is_bare(config: Mapping[str, Any]) -> bool:
    """Return whether the class is a decoder of ours without a head."""
    name = saved_class(config)
    return name.endswith(BARE) and not name.endswith(WITH_HEAD) and config.get("model_type") in MODEL_TYPES


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether the model type is an encoder, which has bidirectional attention."""
    return str(config.get("model_type")) in ENCODERS


def has_labels(config: Mapping[str, Any]) -> bool:
    """Return whether the class has a classification head."""
    return saved_class(config).endswith(LABELLED)


def by_tokens(config: Mapping[str, Any], task: Task) -> bool:
    """Return whether a scoring model uses the logits of tokens, because it has no classification head."""
    return task == "score" and not has_labels(config)


def label_count(config: Mapping[str, Any]) -> int:
    """Return the number of labels; 2 if the config has none, as in Transformers. Raises ModelError for a bad number."""
    named, counted = config.get("id2label"), config.get("num_labels")
    if isinstance(named, Mapping) and named:
        return len(named)
    if counted is None:
        return 2  # Transformers' own default
    if type(counted) is not int or counted < 1:
        raise ModelError(f"config.json: num_labels is {counted!r}; it must be a positive integer")
    return counted


def modules_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the modules of sentence-transformers' modules.json in order, the model first; empty without that file."""
    found = settings_of(config).get("modules")
    return list(found) if isinstance(found, list) else []


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sentence-transformers settings of a config."""
    found = config.get(PARTS)
    return found if isinstance(found, Mapping) else {}


def pooled_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of a pooling model, with at most the positions of sentence-transformers' max_seq_length.

    Raises ModelError for an unsupported model.
    """
    settings, spec = settings_of(config), _described(config)
    if settings.get("max_seq_length") is None:
        return spec
    longest = typed(settings, "max_seq_length", int, None)
    return replace(spec, max_positions=max(1, min(spec.max_positions, longest)))


def _described(config: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec by model_type, because the class may have no head or a classification head."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError("config.json: model_type is missing; embedding and scoring models need it")
    if is_encoder(config):
        return ENCODERS[kind].describe(config)
    return describe({**config, "architectures": None})
