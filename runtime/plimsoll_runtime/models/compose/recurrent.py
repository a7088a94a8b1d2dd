"""Composes recurrent layers into ops: products, a convolution, a scan over tokens, and a gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_kernels.activation.kinds import Activation
from plimsoll_runtime.models.ops.causal_conv import Convolve
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.delta_rule import DeltaRule
from plimsoll_runtime.models.ops.gated_recurrence import GatedRecurrence
from plimsoll_runtime.models.ops.mamba2_scan import DualScan
from plimsoll_runtime.models.ops.mamba_scan import SelectiveScan
from plimsoll_runtime.models.ops.matmul import Product
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import GatedNorm, Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.ops.weight import ByGroup, Weight
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import GatedDelta, Griffin, Mamba, Mamba2, Recurrent, ShortConvolution

PROJECTED, GATE, MIXED, TIMES, SCANNED, OPENED = "projected", "gate", "mixed", "times", "scanned", "opened"
INPUTS, OUTPUTS, WRITES, SCALED = "inputs", "outputs", "writes", "scaled"


@dataclass(frozen=True, slots=True)
class RecurrentComposer:
    """Composes the ops of one recurrent layer.

    `hidden` is the hidden size, `prefix` starts the layer's tensor names, and `first` is the index of its first state
    in `Facts.states`.
    """

    hidden: int
    prefix: str
    first: int

    def ops(self, mixer: Recurrent, reads: str, writes: str) -> Iterator[Op]:
        """Return the ops in order: the first reads the value `reads`, the last writes the value `writes`."""
        match mixer:
            case Mamba():
                return self._mamba(mixer, reads, writes)
            case Mamba2():
                return self._mamba2(mixer, reads, writes)
            case GatedDelta():
                return self._gated_delta(mixer, reads, writes)
            case ShortConvolution():
                return self._short_convolution(mixer, reads, writes)
            case Griffin():
                return self._griffin(mixer, reads, writes)

    def _mamba(self, mixer: Mamba, reads: str, writes: str) -> Iterator[Op]:
        inner, state = mixer.inner, mixer.state
        yield self._product("in_proj", 2 * inner, self.hidden, reads, PROJECTED, biased=mixer.bias)
        yield Split((inner, inner), (PROJECTED,), (MIXED, GATE))
        yield self._convolved("conv1d", inner, mixer.taps, mixer.activation, biased=mixer.conv_bias)
        yield self._product("x_proj", mixer.rank + 2 * state, inner, MIXED, PROJECTED)
        yield Split((mixer.rank, state, state), (PROJECTED,), (TIMES, INPUTS, OUTPUTS))
        if mixer.norm is not None:
            for name, width, value in (("dt", mixer.rank, TIMES), ("b", state, INPUTS), ("c", state, OUTPUTS)):
                yield self._normed(mixer.norm, f"{name}_layernorm", width, value)
        yield self._product("dt_proj", inner, mixer.rank, TIMES, TIMES)
        yield SelectiveScan(
            self.first + 1,
            Weight(f"{self.prefix}.A_log", (inner, state), wide=True),
            self._vector("D", inner),
            self._vector("dt_proj.bias", inner),
            (MIXED, TIMES, INPUTS, OUTPUTS),
            (SCANNED,),
        )
        yield Multiply(inner, mixer.activation, (SCANNED, GATE), (OPENED,))
        yield self._product("out_proj", self.hidden, inner, OPENED, writes, OpKind.OUTPUT, biased=mixer.bias)

    def _mamba2(self, mixer: Mamba2, reads: str, writes: str) -> Iterator[Op]:
        shape = mixer.shape
        widths = (shape.inner, shape.mixed, shape.heads)
        if mixer.input_multiplier != 1.0:
            yield Scale((self.hidden,), (mixer.input_multiplier,), (reads,), (SCALED,))
            reads = SCALED
        yield self._product("in_proj", sum(widths), self.hidden, reads, PROJECTED, biased=mixer.bias)
        if mixer.multipliers is not None:
            each = (shape.inner, shape.inner, *[shape.groups * shape.state] * 2, shape.heads)
            yield Scale(each, mixer.multipliers, (PROJECTED,), (PROJECTED,))
        yield Split(widths, (PROJECTED,), (GATE, MIXED, TIMES))
        yield self._convolved("conv1d", shape.mixed, mixer.taps, mixer.activation, biased=mixer.conv_bias)
        decay, skip, bias = (self._vector(name, shape.heads) for name in ("A_log", "D", "dt_bias"))
        yield DualScan(self.first + 1, shape, decay, skip, bias, (MIXED, TIMES), (SCANNED,), mixer.limits)
        if mixer.eps is None:
            yield Multiply(shape.inner, "silu", (SCANNED, GATE), (OPENED,))
        else:
            weight = self._vector("norm.weight", shape.inner)
            values = (SCANNED, GATE), (OPENED,)
            yield GatedNorm(mixer.eps, shape.inner, shape.groups, weight, *values, after=mixer.gate_after)
        outputs = (self.hidden, shape.inner, OPENED, writes, OpKind.OUTPUT)
        yield self._product("out_proj", *outputs, biased=mixer.output_bias)

    def _gated_delta(self, mixer: GatedDelta, reads: str, writes: str) -> Iterator[Op]:
        shape = mixer.shape
        yield Product(OpKind.QKV, self._delta_inputs(mixer), (), (reads,), (PROJECTED,))
        widths = (shape.mixed, shape.values, shape.value_heads, shape.value_heads)
        yield Split(widths, (PROJECTED,), (MIXED, GATE, WRITES, TIMES))
        yield self._convolved("conv1d", shape.mixed, mixer.taps, mixer.activation, biased=False)
        decay, bias = (self._vector(name, shape.value_heads) for name in ("A_log", "dt_bias"))
        yield DeltaRule(self.first + 1, shape, decay, bias, (MIXED, WRITES, TIMES), (SCANNED,))
        weight, values = self._vector("norm.weight", shape.value_dim), ((SCANNED, GATE), (OPENED,))
        yield GatedNorm(mixer.eps, shape.values, shape.value_heads, weight, *values, after=True)
        yield self._product("out_proj", self.hidden, shape.values, OPENED, writes, OpKind.OUTPUT)

    def _delta_inputs(self, mixer: GatedDelta) -> tuple[Weight, ...]:
        shape = mixer.shape
        if not mixer.by_key_head:
            rows = (shape.mixed, shape.values, shape.value_heads, shape.value_heads)
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            return tuple(self._matrix(name, n, self.hidden) for name, n in zip(names, rows, strict=True))
        each = shape.value_heads // shape.key_heads
        values = each * shape.value_dim
        wide = ByGroup(shape.key_heads, (shape.key_dim, shape.key_dim, values, values), (0, 1, 2, 3))
        narrow = ByGroup(shape.key_heads, (each, each), (0, 1))
        small = self._matrix("in_proj_ba", 2 * shape.value_heads, self.hidden, narrow)
        if mixer.gates_apart:
            mixed, gates = shape.mixed, shape.values
            return (
                self._matrix("in_proj_qkv", mixed, self.hidden),
                self._matrix("in_proj_z", gates, self.hidden),
                small,
            )
        return self._matrix("in_proj_qkvz", shape.mixed + shape.values, self.hidden, wide), small

    def _short_convolution(self, mixer: ShortConvolution, reads: str, writes: str) -> Iterator[Op]:
        inner = mixer.inner
        yield self._product("in_proj", 3 * inner, self.hidden, reads, PROJECTED, biased=mixer.bias)
        yield Split((inner, inner, inner), (PROJECTED,), (INPUTS, GATE, MIXED))
        yield Multiply(inner, "none", (MIXED, INPUTS), (MIXED,))
        yield self._convolved("conv", inner, mixer.taps, None, biased=mixer.bias)
        yield Multiply(inner, "none", (MIXED, GATE), (OPENED,))
        yield self._product("out_proj", self.hidden, inner, OPENED, writes, OpKind.OUTPUT, biased=mixer.bias)

    def _griffin(self, mixer: Griffin, reads: str, writes: str) -> Iterator[Op]:
        inner = mixer.inner
        yield self._product("linear_y", inner, self.hidden, reads, GATE, biased=True)
        yield self._product("linear_x", inner, self.hidden, reads, MIXED, biased=True)
        yield self._convolved("conv_1d", inner, mixer.taps, None, biased=True)
        recurrent, inputs = (self._blocks(name, inner, mixer.heads) for name in ("recurrent_gate", "input_gate"))
        decay = self._vector("rg_lru.recurrent_param", inner)
        yield GatedRecurrence(self.first + 1, decay, *recurrent, *inputs, (MIXED,), (SCANNED,))
        yield Multiply(inner, mixer.activation, (SCANNED, GATE), (OPENED,))
        yield self._product("linear_out", self.hidden, inner, OPENED, writes, OpKind.OUTPUT, biased=True)

    def _blocks(self, name: str, inner: int, heads: int) -> tuple[Weight, Weight]:
        block, prefix = inner // heads, f"{self.prefix}.rg_lru.{name}"
        weight = Weight(f"{prefix}_weight", (heads, block, block), wide=True)
        return weight, Weight(f"{prefix}_bias", (inner,), folded=(heads, block))

    def _convolved(self, name: str, width: int, taps: int, activation: Activation | None, *, biased: bool) -> Convolve:
        weight = Weight(f"{self.prefix}.{name}.weight", (width, taps), folded=(width, 1, taps), wide=True)
        bias = self._vector(f"{name}.bias", width) if biased else None
        return Convolve(self.first, weight, bias, activation, (MIXED,), (MIXED,))

    def _product(
        self,
        name: str,
        outputs: int,
        inputs: int,
        reads: str,
        writes: str,
        kind: OpKind = OpKind.QKV,
        *,
        biased: bool = False,
    ) -> Product:
        biases = (self._vector(f"{name}.bias", outputs),) if biased else ()
        return Product(kind, (self._matrix(name, outputs, inputs),), biases, (reads,), (writes,))

    def _normed(self, norm: Norm, name: str, width: int, value: str) -> Normalise:
        weight = self._vector(f"{name}.weight", width) if norm.weighted else None
        return Normalise(norm, width, (value,), (value,), weight)

    def _matrix(self, name: str, outputs: int, inputs: int, order: ByGroup | None = None) -> Weight:
        return Weight(f"{self.prefix}.{name}.weight", (outputs, inputs), order=order)

    def _vector(self, name: str, size: int) -> Weight:
        return Weight(f"{self.prefix}.{name}", (size,))
