"""Reads configs of mixtures of experts: number, routing, and layers with experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.families.common.variants import mlp_of, with_mixture
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import Mixture, Routing, TopK

SOFTMAX = TopK()
MAX_EXPERTS = 2**17
"""Most experts in all layers together: no model has more (see MAX_LAYERS)."""


def experts_of(config: Config, count: str, chosen: str, default: tuple[int, int]) -> tuple[int, int]:
    """Return (number of experts, number that each token uses). `count` and `chosen` are the names of these fields."""
    experts, each = config.get(count, int, default[0]), config.get(chosen, int, default[1])
    check_experts(config, experts, each)
    return experts, each


def check_experts(config: Config, experts: int, chosen: int) -> None:
    """Raise ModelError for impossible numbers of experts."""
    if not 1 <= experts * config.layers() <= MAX_EXPERTS:
        raise ModelError(
            f"config.json: {experts} experts in {config.layers()} layers; the total must be from 1 to {MAX_EXPERTS}"
        )
    if not 1 <= chosen <= experts:
        raise ModelError(f"config.json: {chosen} experts for each token; the number must be from 1 to {experts}")


def in_groups(config: Config, experts: int, chosen: int, routing: TopK) -> TopK:
    """Return the routing with n_group groups of experts, of which topk_group are eligible for a token (DeepSeek)."""
    groups, opened = config.get("n_group", int, 1), config.get("topk_group", int, 1)
    if not groups or experts % groups or not 1 <= opened <= groups:
        raise ModelError(
            f"config.json: n_group {groups} must be positive and divide {experts} experts, and topk_group {opened} "
            "must be from 1 to n_group"
        )
    size = experts // groups
    if opened * size < chosen or (opened < groups and size < routing.best):
        raise ModelError(
            f"config.json: topk_group {opened} x {size} experts a group must be at least {chosen} experts a token, and "
            f"a group must have at least {routing.best}"
        )
    return replace(routing, groups=groups, open_groups=opened)


def every_step(config: Config) -> Callable[[int], bool]:
    """Return a function of a layer's number: whether the layer has experts, by Qwen's rule.

    Each decoder_sparse_step-th layer has experts, except those listed in mlp_only_layers.
    """
    step = config.positive("decoder_sparse_step", int, 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int for i in dense):
        raise ModelError(f"config.json: mlp_only_layers is {dense!r}; it must be a list of layer numbers")
    return lambda index: index not in dense and (index + 1) % step == 0


def one_of(config: Config, *fields: str) -> str:
    """Return the name of the field, among several of one meaning, that the config has; of the first if it has none.

    Raises ModelError if two of them have different values.
    """
    said = [field for field in fields if config.values.get(field) is not None]
    if len({repr(config.values[field]) for field in said}) > 1:
        raise ModelError(f"config.json: {' and '.join(said)} contradict each other; keep one of them")
    return said[0] if said else fields[0]


def with_experts(
    config: Config, spec: DecoderSpec, count: str, default: tuple[int, int], routing: Routing = SOFTMAX
) -> DecoderSpec:
    """Return a spec with a mixture on each layer, whose experts have the MLP's width. See `experts_of` for `count`."""
    mlp = mlp_of(spec)
    counts = experts_of(config, count, "num_experts_per_tok", default)
    return with_mixture(spec, Mixture(*counts, mlp.inner, routing, mlp.activation))
