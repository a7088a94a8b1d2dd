"""Mixtures of experts as configs say them: how many there are, who chooses, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.feed_forward import TopK

MAX_EXPERTS = 2**17
"""In all layers together: more than any model has (see MAX_LAYERS)."""


def experts_of(config: Config, count: str, chosen: str, default: tuple[int, int]) -> tuple[int, int]:
    """How many experts there are, and how many of them compute a token, by the names that a family has for both."""
    experts, each = config.get(count, int, default[0]), config.get(chosen, int, default[1])
    check_experts(config, experts, each)
    return experts, each


def check_experts(config: Config, experts: int, chosen: int) -> None:
    """Raises ModelError for numbers that cannot be."""
    if not 1 <= experts * config.layers() <= MAX_EXPERTS:
        raise ModelError(
            f"config.json: there are {experts} experts in {config.layers()} layers, and not from 1 to {MAX_EXPERTS}"
        )
    if not 1 <= chosen <= experts:
        raise ModelError(f"config.json: {chosen} experts of {experts} compute a token, which cannot be")


def in_groups(config: Config, experts: int, chosen: int, routing: TopK) -> TopK:
    """DeepSeek's way: n_group groups, of which topk_group are open to a token."""
    groups, opened = config.get("n_group", int, 1), config.get("topk_group", int, 1)
    if not groups or experts % groups or not 1 <= opened <= groups:
        raise ModelError(f"config.json: {opened} of {groups} groups cannot be open to a token, of {experts} experts")
    size = experts // groups
    if opened * size < chosen or (opened < groups and size < routing.best):
        raise ModelError(f"config.json: {opened} groups of {size} experts are too few for {chosen} that are chosen")
    return replace(routing, groups=groups, open_groups=opened)


def every_step(config: Config) -> Callable[[int], bool]:
    """Qwen's way: each decoder_sparse_step-th layer has experts, but for those that mlp_only_layers lists."""
    step = config.positive("decoder_sparse_step", int, 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        raise ModelError(f"config.json: mlp_only_layers is {dense!r}, which is no list of layers' numbers")
    return lambda index: index not in dense and (index + 1) % step == 0


def one_of(config: Config, *fields: str) -> str:
    """The field of several of one meaning that the config has. Raises ModelError where two say different things."""
    said = [field for field in fields if config.values.get(field) is not None]
    if len({repr(config.values[field]) for field in said}) > 1:
        raise ModelError(f"config.json: {' and '.join(said)} say different things; keep one of them")
    return said[0] if said else fields[0]
