"""Adapts specs to llama.cpp's converter, which changes names and layouts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plimsoll_runtime.models.families.granite_hybrid import HYBRID
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec, owner_of
from plimsoll_runtime.models.spec.feed_forward import FeedForward, Mixture, MixtureBeside
from plimsoll_runtime.models.spec.recurrent import GatedDelta
from plimsoll_runtime.models.spec.tensor_names import ExpertNames, StreamNames

LAYER = "model.layers."
BLOCK = "blk."
"""Prefixes of a layer's tensors in Transformers, and of unmapped ones in a GGUF file."""


def as_llama_cpp_has_it(spec: DecoderSpec) -> DecoderSpec:
    """Return a spec for GGUF files.

    Matrices are [outputs, inputs] in all families, and no rows are interleaved. Files have keys and values also for
    layers that share them; these tensors are not read. See also `_layer`, `_streams` and `_experts`.
    """
    names = spec.names
    beyond = (*names.beyond, *(f"{BLOCK}{each.removeprefix(LAYER)}" for each in names.beyond if each.startswith(LAYER)))
    sharing = [number for number, layer in enumerate(spec.layers) if owner_of(layer.mixer) is not None]
    unread = (f"{BLOCK}{number}.{part}" for number in sharing for part in ("attn_k", "attn_v"))
    return replace(
        spec,
        layers=tuple(map(_layer, spec.layers)),
        names=replace(
            names,
            transposed=False,
            interleaved=False,
            gate_up=_apart(names.gate_up) if names.gate_up == HYBRID.gate_up else names.gate_up,
            experts=_experts(names.experts, [layer.mlp for layer in spec.layers]),
            streams=_streams(names.streams),
            beyond=(*beyond, *unread),
        ),
    )


def _layer(layer: LayerSpec) -> LayerSpec:
    """Separate Qwen3-Next's gates from queries, keys and values, and mark Qwen3.5's value heads as alternating."""
    mixer = layer.mixer
    if not isinstance(mixer, GatedDelta):
        return layer
    if mixer.by_key_head:
        return replace(layer, mixer=replace(mixer, gates_apart=True))
    return replace(layer, mixer=replace(mixer, shape=replace(mixer.shape, in_turns=True)))


def _streams(names: StreamNames) -> StreamNames:
    """Return names without a stream's number: GGUF files store the matrices of all streams in one tensor."""
    return replace(names, spread=names.spread.replace(".{}", ""), gather=names.gather.replace(".{}", ""))


def _experts(names: ExpertNames, mlps: Sequence[FeedForward | None]) -> ExpertNames:
    """Return names without an expert's number: GGUF files store all experts of a layer in one tensor.

    Gates and up projections are separate, except for Gemma 4 (mixtures parallel to an MLP). One-row matrices are
    vectors.
    """
    plain = any(isinstance(mlp, Mixture) and mlp.plain for mlp in mlps)
    beside = any(isinstance(mlp, MixtureBeside) for mlp in mlps)
    gate_up = tuple(each.replace(".{}", "") for each in names.gate_up)
    return replace(
        names,
        gate_up=gate_up if plain or beside else _apart(gate_up),
        down=names.down.replace(".{}", ""),
        transposed=False,
        alternating=False,
        shared_gate_up=names.shared_gate_up if plain else _apart(names.shared_gate_up),
        shared_gate_is_vector=True,
        correction_is_row=False,
    )


def _apart(names: tuple[str, ...]) -> tuple[str, ...]:
    return names if len(names) > 1 else tuple(f"{names[0]}.{part}" for part in ("gate", "up"))
