"""From a mixture's spec to its ops: a router, experts, and the MLP that computes every token beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.experts import Experts, Gate
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.route import Route
from plimsoll_runtime.models.ops.weight import ByGroup, InStack, Weight
from plimsoll_runtime.models.spec.feed_forward import GatedMlp, Mixture
from plimsoll_runtime.models.spec.names import Names
from plimsoll_runtime.models.spec.routing import TopK

SHARES, CHOSEN, INNER, SHARED = "shares", "chosen", "inner", "shared"


@dataclass(frozen=True, slots=True)
class MixtureComposer:
    """One layer's; names begin with `prefix`. States are `hidden` wide."""

    mixture: Mixture
    hidden: int
    names: Names
    prefix: str

    def ops(self, reads: str, writes: str) -> Iterator[Op]:
        """In their order."""
        mixture = self.mixture
        yield self._route(reads)
        numbers = range(mixture.experts)
        gate_up = tuple(self._gate_up(number) for number in numbers)
        down = tuple(self._expert(self.names.experts.down, self.hidden, mixture.inner, number) for number in numbers)
        yield Experts(
            mixture.chosen,
            gate_up,
            down,
            mixture.activation,
            (reads, SHARES, CHOSEN),
            (writes,),
            clamped=mixture.clamped,
            gate_up_biases=tuple(self._gate_up_biases(number) for number in numbers) if mixture.bias else (),
            down_biases=tuple(self._down_bias(number) for number in numbers) if mixture.bias else (),
            weighs_inputs=mixture.weighs_inputs,
        )
        if mixture.shared is not None:
            yield from self._shared(mixture.shared, reads)
            yield Add(self.hidden, OpKind.DOWN, (writes, SHARED), (writes,))

    def _route(self, reads: str) -> Route:
        mixture, names = self.mixture, self.names.experts
        weight = Weight(f"{self.prefix}.{names.router}.weight", (mixture.experts, self.hidden), wide=True)
        correction = None
        if isinstance(mixture.routing, TopK) and mixture.routing.corrected:
            row = (1, mixture.experts) if names.correction_is_row else None
            correction = Weight(f"{self.prefix}.{names.correction}", (mixture.experts,), folded=row)
        bias = self._bias(names.router, mixture.experts) if mixture.router_bias else None
        return Route(mixture.routing, mixture.chosen, weight, correction, (reads,), (SHARES, CHOSEN), bias)

    def _gate_up(self, number: int) -> tuple[Weight, ...]:
        names = self.names.experts.gate_up
        rows = 2 * self.mixture.inner // len(names)
        return tuple(self._expert(name, rows, self.hidden, number, self._order) for name in names)

    @property
    def _order(self) -> ByGroup | None:
        return ByGroup(self.mixture.inner, (1, 1), (0, 1)) if self.names.experts.alternating else None

    def _gate_up_biases(self, number: int) -> tuple[Weight, ...]:
        names = self.names.experts.gate_up
        rows = 2 * self.mixture.inner // len(names)
        return tuple(self._expert_bias(name, rows, number, self._order) for name in names)

    def _down_bias(self, number: int) -> Weight:
        return self._expert_bias(self.names.experts.down, self.hidden, number)

    def _shared(self, mlp: GatedMlp, reads: str) -> Iterator[Op]:
        names = self.names.experts
        rows = 2 * mlp.inner // len(names.shared_gate_up)
        parts = tuple(self._matrix(name, rows, self.hidden) for name in names.shared_gate_up)
        biases = tuple(self._bias(name, rows) for name in names.shared_gate_up if mlp.bias)
        yield GatedProduct(parts, biases, mlp.activation, (reads,), (INNER,))
        down = self._matrix(names.shared_down, self.hidden, mlp.inner)
        biases = (self._bias(names.shared_down, self.hidden),) if mlp.bias else ()
        yield Product(OpKind.DOWN, (down,), biases, (INNER,), (SHARED,))
        if self.mixture.shared_gated:
            gate = self._matrix(names.shared_gate, 1, self.hidden)
            gate = replace(gate, folded=(self.hidden,)) if names.shared_gate_is_vector else gate
            yield Gate(gate, (reads, SHARED), (SHARED,))

    def _matrix(self, name: str, outputs: int, inputs: int) -> Weight:
        return Weight(f"{self.prefix}.{name}.weight", (outputs, inputs), self.names.transposed)

    def _expert(self, name: str, outputs: int, inputs: int, number: int, order: ByGroup | None = None) -> Weight:
        names = self.names.experts
        full = f"{self.prefix}.{name.format(number)}{names.suffix}"
        transposed = names.transposed or self.names.transposed
        return Weight(full, (outputs, inputs), transposed, order, stack=self._stack(name, number))

    def _expert_bias(self, name: str, size: int, number: int, order: ByGroup | None = None) -> Weight:
        full = f"{self.prefix}.{name.format(number)}{self.names.experts.bias_suffix}"
        return Weight(full, (size,), order=order, stack=self._stack(name, number))

    def _stack(self, name: str, number: int) -> InStack | None:
        return None if "{}" in name else InStack(number, self.mixture.experts)

    def _bias(self, name: str, size: int) -> Weight:
        return Weight(f"{self.prefix}.{name}.bias", (size,))
