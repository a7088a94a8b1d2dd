"""Specs that differ from their neighbours' in one thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, MixtureBeside, PlainMlp


def mlp_of(spec: DecoderSpec) -> GatedMlp | PlainMlp | Mixture:
    """What the first layer does to each token, of a family all of whose layers do one thing, and alike."""
    mlp = spec.layers[0].mlp
    assert mlp is not None
    assert not isinstance(mlp, MixtureBeside)
    return mlp


def with_layers(spec: DecoderSpec, change: Callable[[LayerSpec], LayerSpec]) -> DecoderSpec:
    """Each layer changed."""
    return replace(spec, layers=tuple(map(change, spec.layers)))


def with_mixers(spec: DecoderSpec, change: Callable[[SelfAttention], SelfAttention]) -> DecoderSpec:
    """Each layer's attention changed. Raises TypeError for a layer that has another mixer."""
    return with_layers(spec, lambda layer: replace(layer, mixer=change(self_attention(layer))))


def self_attention(layer: LayerSpec) -> SelfAttention:
    """A layer's. Raises TypeError for one that has another mixer."""
    if not isinstance(layer.mixer, SelfAttention):
        raise TypeError(f"a layer's mixer is {type(layer.mixer).__name__}")
    return layer.mixer


def with_windows(spec: DecoderSpec, windows: Sequence[int | None]) -> DecoderSpec:
    """A window for each layer; None: none."""
    layers = zip(spec.layers, windows, strict=True)
    return replace(spec, layers=tuple(_windowed(layer, window) for layer, window in layers))


def with_mixture(
    spec: DecoderSpec, mixture: Mixture, is_sparse: Callable[[int], bool] = lambda index: True
) -> DecoderSpec:
    """With a mixture in place of the MLPs of those layers whose numbers are sparse."""
    layers = (replace(layer, mlp=mixture) if is_sparse(i) else layer for i, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


def _windowed(layer: LayerSpec, window: int | None) -> LayerSpec:
    mixer = self_attention(layer)
    return replace(layer, mixer=replace(mixer, shape=replace(mixer.shape, window=window)))
