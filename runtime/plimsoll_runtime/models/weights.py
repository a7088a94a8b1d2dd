"""A decoder's weights as they are read: layer by layer, so that never more than one layer exists twice.

Matrices are packed straight from where their source has them, which may be the mapped file; what a decoder keeps as
it is (embedding, norms) gets memory of its own. Matrices come in the dtype of the run. Vectors (norms, biases) come in
float32 whatever that is: GGUF stores them so, and to round them costs accuracy and saves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_kernels.cpu.places import Places
from plimsoll_runtime.models.names import EMBEDDING, FINAL_NORM, HEAD, VECTOR_DTYPE, expected_tensors, norm_names
from plimsoll_runtime.models.spec import DecoderSpec
from plimsoll_runtime.weights.image.tensors import ShapesOnly, hollow
from plimsoll_runtime.weights.tensors import TensorSource

Progress = Callable[[str, float], None]
STAGE = "load weights"


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """weight [out, in] in the dtype of the run, bias float32 [out]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's: float32 `norms` in the order in which they come, and those over each head of queries and keys."""

    query_key_value: LinearWeights
    output: LinearWeights
    gate: LinearWeights
    up: LinearWeights
    down: LinearWeights
    norms: tuple[Tensor, ...]
    head_norms: tuple[Tensor, Tensor] | None

    @property
    def gate_up_bias(self) -> Tensor | None:
        """The gate's bias, then the one of what it opens."""
        if self.gate.bias is None or self.up.bias is None:
            return None
        return torch.cat([self.gate.bias, self.up.bias])


class WeightReader:
    """Reads what a spec needs, matrices in `dtype`, onto the run's device. `nbytes` counts what was read so far.

    `places`: where each tensor lies as soon as it is converted, for a decoder that computes with it as it is.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        places: Places | None = None,
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.nbytes = 0
        self._source = source
        self._places = places
        self._progress = progress
        progress(STAGE, 0.0)

    def embedding(self, *, keep: bool = True) -> Tensor:
        """[vocab, hidden]; `keep`: whether it is kept as it is."""
        return self._read(EMBEDDING, keep=keep)

    def head(self, embedding: Tensor) -> Tensor:
        """[vocab, hidden]: the embedding itself where the two are tied."""
        return embedding if self.spec.tied_embeddings else self._read(HEAD)

    def final_norm(self) -> Tensor:
        """float32 [hidden]."""
        return self._vector(FINAL_NORM)

    def layers(self) -> Iterator[LayerWeights]:
        """One after the other; a layer is read when it is asked for."""
        for index in range(self.spec.num_layers):
            yield self._layer(f"model.layers.{index}")
            self._progress(STAGE, (index + 1) / self.spec.num_layers)

    def _layer(self, prefix: str) -> LayerWeights:
        spec = self.spec
        head_norms = None
        if spec.qk_norm:
            query, key = (self._vector(f"{prefix}.self_attn.{x}_norm.weight") for x in ("q", "k"))
            head_norms = (query, key)
        return LayerWeights(
            query_key_value=self._linear(spec.qkv_bias, *(f"{prefix}.self_attn.{x}_proj" for x in ("q", "k", "v"))),
            output=self._linear(spec.output_bias, f"{prefix}.self_attn.o_proj"),
            gate=self._linear(spec.mlp_bias, f"{prefix}.mlp.gate_proj"),
            up=self._linear(spec.mlp_bias, f"{prefix}.mlp.up_proj"),
            down=self._linear(spec.mlp_bias, f"{prefix}.mlp.down_proj"),
            norms=tuple(self._vector(f"{prefix}.{name}.weight") for name in norm_names(spec)),
            head_norms=head_norms,
        )

    def _linear(self, biased: bool, *names: str) -> LinearWeights:
        """Several weights that read the same input are one."""
        weight = self._join([self._read(f"{name}.weight") for name in names])
        bias = self._join([self._vector(f"{name}.bias") for name in names]) if biased else None
        return LinearWeights(weight, bias)

    def _vector(self, name: str) -> Tensor:
        return self._read(name, keep=True, dtype=VECTOR_DTYPE)

    def _read(self, name: str, *, keep: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        kept = keep and self.device.type == "cpu" and self._places is None
        tensor = self._source.stored(name).converted(dtype or self.dtype, keep=kept)
        if self._places is not None:
            tensor = self._places.keep(tensor)
        tensor = tensor.to(self.device)
        self.nbytes += tensor.nbytes
        return tensor

    @staticmethod
    def _join(tensors: list[Tensor]) -> Tensor:
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class ShapeReader(WeightReader):
    """Reads nothing: its tensors have shapes and no memory (see `hollow`), for a decoder whose places are filled."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        super().__init__(spec, ShapesOnly(expected_tensors(spec)), dtype, torch.device("cpu"), _silent)

    @staticmethod
    def _join(tensors: list[Tensor]) -> Tensor:
        rows = sum(tensor.shape[0] for tensor in tensors)
        return hollow((rows, *tensors[0].shape[1:]), tensors[0].dtype)


def _silent(stage: str, fraction: float) -> None:
    """Nothing is read, so there is nothing to see."""
