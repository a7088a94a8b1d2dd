"""Which programs the CPU kernels compute in one call: their layers, taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attend import Attend
from plimsoll_runtime.models.ops.embed import Embed
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.program import Program

T = TypeVar("T")


class UnfusableError(Exception):
    """The kernels have no such row of ops."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer's ops, in their order."""

    attention_norm: Normalise
    query_key_value: Product
    head_norm: NormHeads | None
    rotate: Rotate
    attend: Attend
    output: Product
    attention_post_norm: Normalise | None
    mlp_norm: Normalise
    gate_up: GatedProduct
    down: Product
    mlp_post_norm: Normalise | None


@dataclass(frozen=True, slots=True)
class FusedProgram:
    """What the kernels walk: one embedding, layers alike but for their attention, one last norm."""

    embed: Embed
    layers: tuple[FusedLayer, ...]
    final_norm: Normalise

    @property
    def first(self) -> FusedLayer:
        """The first layer, for what is the same in all."""
        return self.layers[0]


def fused_program(program: Program) -> FusedProgram:
    """Raises UnfusableError, saying what the kernels do not have."""
    ops = _Ops(program.ops)
    embed = ops.take(Embed)
    layers = []
    while not ops.is_last:
        layers.append(_layer(ops))
    found = FusedProgram(embed, tuple(layers), ops.take(Normalise))
    _check(found)
    return found


def why_not_fused(program: Program) -> str | None:
    """None where the kernels compute it."""
    try:
        fused_program(program)
    except UnfusableError as error:
        return str(error)
    return None


class _Ops:
    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._at = 0

    @property
    def is_last(self) -> bool:
        """Whether there is one left."""
        return self._at == len(self._ops) - 1

    def take(self, kind: type[T]) -> T:
        """The next one. Raises UnfusableError for one of another kind."""
        found = self.take_if(kind)
        if found is None:
            there = type(self._ops[self._at]).__name__ if self._at < len(self._ops) else "nothing"
            raise UnfusableError(f"computes no layers that have {there} where others have {kind.__name__}")
        return found

    def take_if(self, kind: type[T]) -> T | None:
        """The next one, if it is of a kind."""
        if self._at < len(self._ops) and isinstance(found := self._ops[self._at], kind):
            self._at += 1
            return found
        return None


def _layer(ops: _Ops) -> FusedLayer:
    attention_norm, query_key_value = ops.take(Normalise), ops.take(Product)
    head_norm, rotate, attend = ops.take_if(NormHeads), ops.take(Rotate), ops.take(Attend)
    output, attention_post_norm = ops.take(Product), ops.take_if(Normalise)
    adds = [ops.take(Add)]
    mlp_norm, gate_up, down = ops.take(Normalise), ops.take(GatedProduct), ops.take(Product)
    mlp_post_norm = ops.take_if(Normalise)
    adds.append(ops.take(Add))
    if any(add.scale != 1.0 for add in adds):
        raise UnfusableError("scales nothing that is added to the states")
    return FusedLayer(
        attention_norm,
        query_key_value,
        head_norm,
        rotate,
        attend,
        output,
        attention_post_norm,
        mlp_norm,
        gate_up,
        down,
        mlp_post_norm,
    )


def _check(program: FusedProgram) -> None:
    layers, final = program.layers, program.final_norm
    norms = [final, *(norm for layer in layers for norm in _norms(layer))]
    head_norms = [layer.head_norm for layer in layers if layer.head_norm is not None]
    products = [product for layer in layers for product in (layer.query_key_value, layer.output, layer.down)]
    for fits, otherwise in (
        (bool(layers), "computes no decoder without layers"),
        (all(norm.norm == final.norm for norm in norms), "takes norms of one kind, and the model has several"),
        (_is_rms(final), "has no norms but root mean square ones with a weight"),
        (all(norm.norm.norm == final.norm for norm in head_norms), "norms heads as it norms states"),
        (not any(n.norm.together or n.norm.own or n.norm.turned for n in head_norms), "has one weight for all heads"),
        (all(p.activation is None and p.clip is None for p in products), "changes nothing of what products give"),
        (all(_turns_whole(layer.rotate) for layer in layers), "turns whole heads, one half with the other"),
        (len({(p.outputs, p.activation) for p in (layer.gate_up for layer in layers)}) == 1, "has MLPs of one width"),
        (program.first.gate_up.activation in ("silu", "gelu_tanh"), "has SiLU and tanh GeLU as activations alone"),
    ):
        if not fits:
            raise UnfusableError(otherwise)


def _norms(layer: FusedLayer) -> Iterator[Normalise]:
    for norm in (layer.attention_norm, layer.attention_post_norm, layer.mlp_norm, layer.mlp_post_norm):
        if norm is not None:
            yield norm


def _is_rms(norm: Normalise) -> bool:
    return norm.norm.kind == "rms" and norm.weight is not None and norm.bias is None


def _turns_whole(rotate: Rotate) -> bool:
    return not rotate.rope.pairs and rotate.rope.head_dim == rotate.shape.head_dim
