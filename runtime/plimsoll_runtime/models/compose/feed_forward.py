"""Composes MLPs and mixtures (router, experts, shared MLP) into ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.matmul import GatedProduct, Linears, Product
from plimsoll_runtime.models.ops.multiply import Multiply, Sparsify
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.weight import ByGroup, InStack, Weight
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture, MixtureBeside, PlainMlp, TopK
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import Names

GATE, INNER = "gate", "inner"


@dataclass(frozen=True, slots=True)
class MlpComposer:
    """Composes the ops of one MLP. `hidden` is the hidden size. A plain MLP uses only the last name of `gate_up`."""

    hidden: int
    gate_up: tuple[str, ...]
    down: str
    linears: Linears

    def ops(self, mlp: GatedMlp | PlainMlp, reads: str, writes: str) -> Iterator[Op]:
        """Yield the ops in order: the first reads the value `reads`, the last writes the value `writes`."""
        if isinstance(mlp, PlainMlp):
            parts = self.linears.parts(self.gate_up[-1:], (mlp.inner,), self.hidden, biased=mlp.bias)
            yield Product(OpKind.GATE_UP, *parts, (reads,), (INNER,), mlp.activation)
        elif mlp.gate_scale != 1.0 or mlp.sparsity:
            yield from self._changed_gate(mlp, reads)
        else:
            parts = self.linears.parts(self.gate_up, (mlp.inner, mlp.inner), self.hidden, biased=mlp.bias)
            yield GatedProduct(*parts, mlp.activation, (reads,), (INNER,))
        yield self.linears.product(OpKind.DOWN, self.down, self.hidden, mlp.inner, (INNER, writes), biased=mlp.bias)
        if isinstance(mlp, GatedMlp) and mlp.scale != 1.0:
            yield Scale((self.hidden,), (mlp.scale,), (writes,), (writes,))

    def _changed_gate(self, mlp: GatedMlp, reads: str) -> Iterator[Op]:
        for name, writes in zip(self.gate_up, (GATE, INNER), strict=True):
            yield self.linears.product(OpKind.GATE_UP, name, mlp.inner, self.hidden, (reads, writes), biased=mlp.bias)
        if mlp.gate_scale != 1.0:
            yield Scale((mlp.inner,), (mlp.gate_scale,), (GATE,), (GATE,), OpKind.GATE_UP)
        if mlp.sparsity:
            yield Sparsify(mlp.inner, mlp.sparsity, (GATE,), (GATE,))
        yield Multiply(mlp.inner, mlp.activation, (INNER, GATE), (INNER,), OpKind.GATE_UP)


SHARES, CHOSEN, SHARED, NARROWED = "shares", "chosen", "shared", "narrowed"
DENSE, RANKED, TAKEN = "dense", "ranked", "taken"


@dataclass(frozen=True, slots=True)
class MixtureComposer:
    """Composes the ops of one mixture of experts. `hidden` is the hidden size."""

    mixture: Mixture
    hidden: int
    names: Names
    linears: Linears

    def ops(self, reads: str, writes: str, ranked: str | None = None) -> Iterator[Op]:
        """Yield the ops that compute `writes` from `reads`. `ranked`: the router's input, if it is not `reads`."""
        mixture = self.mixture
        yield self._route(ranked or reads)
        if (narrowed := mixture.narrowed) is None:
            yield self._experts(reads, writes)
        else:
            down, up = self.names.experts.narrowed
            width, product, biased = narrowed.width, self.linears.product, narrowed.bias
            yield product(OpKind.EXPERTS, down, width, self.hidden, (reads, NARROWED), biased=biased)
            yield self._experts(NARROWED, writes)
            yield product(OpKind.EXPERTS, up, self.hidden, width, (writes, writes), biased=biased)
        if mixture.shared is not None:
            yield from self._shared(mixture.shared, reads)
            yield Add(self.hidden, OpKind.DOWN, (writes, SHARED), (writes,))

    def _experts(self, reads: str, writes: str) -> Experts:
        mixture, numbers = self.mixture, range(self.mixture.experts)
        return Experts(
            mixture.chosen,
            tuple(self._gate_up(number) for number in numbers),
            tuple(self._expert(self.names.experts.down, self._width, mixture.inner, number) for number in numbers),
            mixture.activation,
            (reads, SHARES, CHOSEN),
            (writes,),
            clamped=mixture.clamped,
            gate_up_biases=tuple(self._gate_up_biases(number) for number in numbers) if mixture.bias else (),
            down_biases=tuple(self._down_bias(number) for number in numbers) if mixture.bias else (),
            weighs_inputs=mixture.weighs_inputs,
            gated=not mixture.plain,
        )

    @property
    def _width(self) -> int:
        """Columns of the experts' input and output."""
        return self.hidden if self.mixture.narrowed is None else self.mixture.narrowed.width

    def _route(self, reads: str) -> Route:
        mixture, names = self.mixture, self.names.experts
        weight = Weight(f"{self.linears.prefix}.{names.router}.weight", (mixture.experts, self.hidden), wide=True)
        correction = None
        if isinstance(mixture.routing, TopK) and mixture.routing.corrected:
            row = (1, mixture.experts) if names.correction_is_row else None
            correction = Weight(f"{self.linears.prefix}.{names.correction}", (mixture.experts,), folded=row)
        bias = self.linears.vector(f"{names.router}.bias", mixture.experts) if mixture.router_bias else None
        scales = None
        if isinstance(mixture.routing, TopK) and mixture.routing.scaled_each:
            scales = self.linears.vector(names.scales, mixture.experts)
        return Route(mixture.routing, mixture.chosen, weight, correction, (reads,), (SHARES, CHOSEN), bias, scales)

    def _gate_up(self, number: int) -> tuple[Weight, ...]:
        names = self.names.experts.gate_up
        rows = self._opening // len(names)
        return tuple(self._expert(name, rows, self._width, number, self._order) for name in names)

    @property
    def _opening(self) -> int:
        """Rows of an expert's gate and up matrices together, or of its up matrix if experts have no gate."""
        return self.mixture.inner if self.mixture.plain else 2 * self.mixture.inner

    @property
    def _order(self) -> ByGroup | None:
        return ByGroup(self.mixture.inner, (1, 1), (0, 1)) if self.names.experts.alternating else None

    def _gate_up_biases(self, number: int) -> tuple[Weight, ...]:
        names = self.names.experts.gate_up
        rows = self._opening // len(names)
        return tuple(self._expert_bias(name, rows, number, self._order) for name in names)

    def _down_bias(self, number: int) -> Weight:
        return self._expert_bias(self.names.experts.down, self._width, number)

    def _shared(self, mlp: GatedMlp | PlainMlp, reads: str) -> Iterator[Op]:
        names = self.names.experts
        shared = MlpComposer(self.hidden, names.shared_gate_up, names.shared_down, self.linears)
        yield from shared.ops(mlp, reads, SHARED)
        if self.mixture.shared_gated:
            gate = self.linears.matrix(names.shared_gate, 1, self.hidden)
            gate = replace(gate, folded=(self.hidden,)) if names.shared_gate_is_vector else gate
            yield Gate(gate, (reads, SHARED), (SHARED,))

    def _expert(self, name: str, outputs: int, inputs: int, number: int, order: ByGroup | None = None) -> Weight:
        names = self.names.experts
        full = f"{self.linears.prefix}.{name.format(number)}{names.suffix}"
        transposed = names.transposed or self.names.transposed
        return Weight(full, (outputs, inputs), transposed, order, stack=self._stack(name, number))

    def _expert_bias(self, name: str, size: int, number: int, order: ByGroup | None = None) -> Weight:
        full = f"{self.linears.prefix}.{name.format(number)}{self.names.experts.bias_suffix}"
        return Weight(full, (size,), order=order, stack=self._stack(name, number))

    def _stack(self, name: str, number: int) -> InStack | None:
        return None if "{}" in name else InStack(number, self.mixture.experts)


@dataclass(frozen=True, slots=True)
class BesideComposer:
    """Composes the ops of a mixture parallel to an MLP. `hidden` is the hidden size."""

    both: MixtureBeside
    hidden: int
    norm: Norm
    names: Names
    linears: Linears

    def ops(self, states: str, reads: str, writes: str) -> Iterator[Op]:
        """Yield the ops; their result is the sum of both. `states`: the layer's states; `reads`: the MLP's input."""
        names = self.names.beside
        dense = MlpComposer(self.hidden, self.names.gate_up, self.names.down, self.linears)
        yield from dense.ops(self.both.mlp, reads, DENSE)
        yield self._normed(names.dense, DENSE, DENSE)
        yield self._normed(names.routed, states, RANKED)
        yield Scale((self.hidden,), (self.hidden**-0.5,), (RANKED,), (RANKED,), OpKind.ROUTE)
        yield self._normed(names.before, states, TAKEN)
        routed = MixtureComposer(self.both.mixture, self.hidden, self.names, self.linears)
        yield from routed.ops(TAKEN, writes, RANKED)
        yield self._normed(names.after, writes, writes)
        yield Add(self.hidden, OpKind.DOWN, (DENSE, writes), (writes,))

    def _normed(self, name: str, reads: str, writes: str) -> Normalise:
        return Normalise(self.norm, self.hidden, (reads,), (writes,), self.linears.vector(name, self.hidden))
