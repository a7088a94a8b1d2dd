"""Changes to specs, for families that differ from another in a few points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from plimsoll_runtime.models.families.common.config import Config
from plimsoll_runtime.models.spec.attention import SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, MixtureBeside, PlainMlp


def mlp_of(spec: DecoderSpec) -> GatedMlp | PlainMlp | Mixture:
    """Return the MLP of the first layer, for families whose layers are all equal."""
    mlp = spec.layers[0].mlp
    assert mlp is not None
    assert not isinstance(mlp, MixtureBeside)
    return mlp


def with_layers(spec: DecoderSpec, change: Callable[[LayerSpec], LayerSpec]) -> DecoderSpec:
    """Return a spec whose layers are the results of `change`."""
    return replace(spec, layers=tuple(map(change, spec.layers)))


def with_mixers(spec: DecoderSpec, change: Callable[[SelfAttention], SelfAttention]) -> DecoderSpec:
    """Return a spec whose layers have the attention that `change` returns. Raises TypeError for another mixer."""
    return with_layers(spec, lambda layer: replace(layer, mixer=change(self_attention(layer))))


def self_attention(layer: LayerSpec) -> SelfAttention:
    """Return a layer's attention. Raises TypeError if it has another mixer."""
    if not isinstance(layer.mixer, SelfAttention):
        raise TypeError(f"expected attention, but the layer's mixer is {type(layer.mixer).__name__}")
    return layer.mixer


def with_windows(spec: DecoderSpec, windows: Sequence[int | None]) -> DecoderSpec:
    """Return a spec with a window for each layer; None: no window."""
    layers = zip(spec.layers, windows, strict=True)
    return replace(spec, layers=tuple(_windowed(layer, window) for layer, window in layers))


def with_sliding(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """Return a spec with the config's window, if any, on all layers."""
    return with_windows(spec, [config.get("sliding_window", int, 0) or None] * spec.num_layers)


def with_mixture(
    spec: DecoderSpec, mixture: Mixture, is_sparse: Callable[[int], bool] = lambda index: True
) -> DecoderSpec:
    """Return a spec with a mixture instead of the MLP in each layer for whose number `is_sparse` returns True."""
    layers = (replace(layer, mlp=mixture) if is_sparse(i) else layer for i, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


def _windowed(layer: LayerSpec, window: int | None) -> LayerSpec:
    mixer = self_attention(layer)
    return replace(layer, mixer=replace(mixer, shape=replace(mixer.shape, window=window)))
