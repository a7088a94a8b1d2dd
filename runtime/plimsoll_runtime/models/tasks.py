"""What a checkpoint is for: by its class, by what sentence-transformers keeps beside it, or by who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from plimsoll_runtime.engine.protocol.pooling import TASKS, Task
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.models.encoders import ENCODERS
from plimsoll_runtime.models.families.fields import saved_class
from plimsoll_runtime.models.modules import POOLING
from plimsoll_runtime.models.registry import MODEL_TYPES
from plimsoll_runtime.weights.files import PARTS, YES_OR_NO

TOLD = "task"
"""In the config that an image keeps: what the model was loaded for."""
LABELLED = "ForSequenceClassification"
BARE, WITH_HEAD = "Model", "LMHeadModel"
"""How a decoder's class ends that has no head, and how older ones end that generate."""
LOGIT_SCORE = "LogitScore"
"""The module of a reranker by the logits of two tokens, beside those of `models.modules`."""


def task_of(config: Mapping[str, Any], asked: str = "auto") -> Task:
    """The task of a model, or the one that is asked for. Raises UsageError for one that its files do not serve."""
    if asked not in TASKS:
        raise UsageError(f"--task must be one of {', '.join(TASKS)}, not {asked}")
    if asked == "auto":
        return _detected(config)
    labels = has_labels(config)
    if asked == "generate" and (labels or is_encoder(config)):
        raise UsageError(f"--task generate: {saved_class(config)} generates nothing; leave the option out")
    if asked == "classify" and not labels:
        raise UsageError(f"--task classify: {saved_class(config)} has no head of labels; leave the option out")
    if asked == "score" and not labels and is_encoder(config):
        raise UsageError(f"--task score: {saved_class(config)} has no head that scores; leave the option out")
    if asked == "score" and labels and label_count(config) != 1:
        raise UsageError(f"--task score: {saved_class(config)} has {label_count(config)} labels, and a score is one")
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
    """Whether it is a decoder of ours without its head."""
    name = saved_class(config)
    return name.endswith(BARE) and not name.endswith(WITH_HEAD) and config.get("model_type") in MODEL_TYPES


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether its type is that of an encoder, whose attention is bidirectional."""
    return str(config.get("model_type")) in ENCODERS


def has_labels(config: Mapping[str, Any]) -> bool:
    """Whether its class gives scores to labels."""
    return saved_class(config).endswith(LABELLED)


def by_tokens(config: Mapping[str, Any], task: Task) -> bool:
    """Whether a model that is served for a task scores by the logits of tokens, as it has no head of labels."""
    return task == "score" and not has_labels(config)


def label_count(config: Mapping[str, Any]) -> int:
    """How many labels it has. Raises ModelError where the config does not say it as Transformers does."""
    named, counted = config.get("id2label"), config.get("num_labels")
    if isinstance(named, Mapping) and named:
        return len(named)
    if counted is None:
        return 2  # Transformers' own default
    if type(counted) is not int or counted < 1:
        raise ModelError(f"config.json: num_labels is {counted!r}, and not a number of labels")
    return counted


def modules_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of sentence-transformers' modules.json in their order, the model itself first; none without that file."""
    found = settings_of(config).get("modules")
    return list(found) if isinstance(found, list) else []


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What sentence-transformers keeps beside the model."""
    found = config.get(PARTS)
    return found if isinstance(found, Mapping) else {}
