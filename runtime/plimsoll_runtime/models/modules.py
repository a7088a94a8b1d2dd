"""What sentence-transformers' modules do to a model's hidden states, as a record of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.errors import ModelError, UnsupportedFieldError
from plimsoll_runtime.models.families.fields import typed
from plimsoll_runtime.models.spec.pooling import Dense, HeadActivation, HeadLayer, Pooling, PoolingKind

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
"""Flags of older configs of a pooling, each for one way to pool; None: a way that is not computed here."""
ACTIVATIONS: Mapping[str, HeadActivation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "SiLU": "silu",
}


def module_layers(modules: Sequence[Mapping[str, Any]]) -> Pooling:
    """For a model, a pooling, any dense layers, and normalisation in the end. Raises ModelError for any other row."""
    kinds = [str(module["kind"]) for module in modules]
    if kinds[:2] != [MODEL, POOLING]:
        raise UnsupportedFieldError(f"modules.json: {' and '.join(kinds[:2])} do not begin with a model and a pooling")
    layers: list[HeadLayer] = []
    normalised = False
    for kind, module in zip(kinds[2:], modules[2:], strict=True):
        if kind == DENSE and not normalised:
            layers.append(_dense(module))
        elif kind == NORMALISE:
            normalised = True
        elif kind != DROPOUT:
            raise UnsupportedFieldError(f"modules.json: a module {kind} there is not supported")
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
        raise UnsupportedFieldError(f"{file}: pooling by {mode or 'nothing'} is not supported")
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
        raise ModelError(f"{module['path']}/config.json holds no JSON object")
    return config
