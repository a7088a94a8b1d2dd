"""Composes AltUp streams, LAuReL and per-layer inputs (Gemma 3n, Gemma 4) into ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.embed import Embed
from plimsoll_runtime.models.ops.matmul import Product
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.split import Columns
from plimsoll_runtime.models.ops.streams import AddToOthers, Average, Correct, JoinInputs, Predict, Spread
from plimsoll_runtime.models.ops.weight import InStack, Weight
from plimsoll_runtime.models.spec.decoder import AltUp, DecoderSpec, TokenInputs
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.tensor_names import StreamNames

INPUTS, PROJECTED, INPUT, OPENED = "inputs", "projected", "input", "opened"
STREAMS, PREDICTED, STREAM = "streams", "predicted", "stream"


@dataclass(frozen=True, slots=True)
class InputComposer:
    """Composes per-layer inputs: each layer adds its own vector of each token to its states (see `TokenInputs`)."""

    spec: DecoderSpec
    inputs: TokenInputs

    @property
    def width(self) -> int:
        """Columns of all layers' inputs together."""
        return self.spec.num_layers * self.inputs.width

    def start(self, states: str) -> Iterator[Op]:
        """Yield the ops that compute INPUTS from embedded tokens."""
        spec, own, names = self.spec, self.inputs, self.spec.names.inputs
        table = Weight(f"{names.table}.weight", (own.vocab, self.width))
        yield Embed(table, (INPUTS,), own.width**0.5, partial=own.vocab < spec.vocab_size)
        yield _product(OpKind.EMBED, names.projection, self.width, spec.hidden_size, states, PROJECTED)
        norm = Weight(f"{names.norm}.weight", (own.width,))
        values = (INPUTS, PROJECTED), (INPUTS,)
        yield JoinInputs(own.norm, spec.num_layers, own.width, spec.hidden_size**-0.5, norm, *values)

    def added(self, prefix: str, layer: int, states: str, writes: str) -> Iterator[Op]:
        """Yield the ops that gate a layer's own input by its states, project it to the hidden size and normalise it."""
        own, names, hidden = self.inputs, self.spec.names.inputs, self.spec.hidden_size
        yield Columns(layer, own.width, (INPUTS,), (INPUT,), OpKind.GATE_UP)
        yield _product(OpKind.GATE_UP, f"{prefix}.{names.gate}", own.width, hidden, states, OPENED)
        yield Multiply(own.width, own.activation, (INPUT, OPENED), (OPENED,), OpKind.GATE_UP)
        yield _product(OpKind.DOWN, f"{prefix}.{names.up}", hidden, own.width, OPENED, writes)
        after = Weight(f"{prefix}.{names.after}.weight", (hidden,))
        yield Normalise(own.norm, hidden, (writes,), (writes,), after)


@dataclass(frozen=True, slots=True)
class StreamComposer:
    """Composes the ops of AltUp: several streams of hidden states, of which a layer computes one."""

    spec: DecoderSpec
    altup: AltUp

    @property
    def width(self) -> int:
        """Columns of all streams together."""
        return self.altup.streams * self.hidden

    @property
    def hidden(self) -> int:
        """Columns of one stream."""
        return self.spec.hidden_size

    @property
    def names(self) -> StreamNames:
        """Tensor names of the streams."""
        return self.spec.names.streams

    def start(self, states: str) -> Iterator[Op]:
        """Yield the ops that compute STREAMS from embedded tokens."""
        parts = tuple(self._of_stream(self.names.spread, i) for i in range(self.altup.streams - 1))
        yield Product(OpKind.EMBED, parts, (), (states,), (PROJECTED,))
        yield Spread(self.hidden, self.altup.streams, (states, PROJECTED), (STREAMS,))

    def predicted(self, prefix: str, states: str) -> Iterator[Op]:
        """Yield the ops before a layer, which write the active stream to the states."""
        count, names = self.altup.streams, self.names
        coefficients = Weight(f"{prefix}.{names.prediction}.weight", (count * count, count))
        values = (STREAMS,), (PREDICTED, states)
        yield Predict(self.altup.norm, self.altup.active, *self._router(prefix), coefficients, *values)

    def corrected(self, prefix: str, states: str) -> Iterator[Op]:
        """Yield the ops after a layer, which update all streams and write the active one to the states."""
        count, names = self.altup.streams, self.names
        coefficients = Weight(f"{prefix}.{names.correction}.weight", (count, count))
        scale = Weight(f"{prefix}.{names.scale}", (self.hidden,)) if self.altup.scaled else None
        values = (PREDICTED, states), (STREAMS, states)
        yield Correct(self.altup.norm, self.altup.active, *self._router(prefix), coefficients, scale, *values)

    def with_added(self, added: str) -> Iterator[Op]:
        """Yield the op that adds a value to all streams except the first."""
        yield AddToOthers(self.hidden, self.altup.streams, (STREAMS, added), (STREAMS,))

    def end(self, states: str) -> Iterator[Op]:
        """Yield the ops that merge all streams into the states."""
        found = [f"{STREAM}_{i}" for i in range(self.altup.streams)]
        for number, name in enumerate(found):
            yield Columns(number, self.hidden, (STREAMS,), (name,), OpKind.NORM)
            if number:
                parts = (self._of_stream(self.names.gather, number - 1),)
                yield Product(OpKind.OUTPUT, parts, (), (name,), (name,))
        yield Average(self.hidden, tuple(found), (states,))

    def _of_stream(self, name: str, number: int) -> Weight:
        stack = None if "{}" in name else InStack(number, self.altup.streams - 1)
        return Weight(f"{name.format(number)}.weight", (self.hidden, self.hidden), stack=stack)

    def _router(self, prefix: str) -> tuple[Weight, Weight]:
        """Return the weights of the router's norm and of the router."""
        norm, router = (f"{prefix}.{name}.weight" for name in (self.names.norm, self.names.router))
        return Weight(norm, (self.hidden,)), Weight(router, (self.altup.streams, self.hidden))


def laurel(
    prefix: str, names: StreamNames, rank: int, hidden: int, norm: Norm, values: tuple[str, str]
) -> Iterator[Op]:
    """Yield the ops of LAuReL (Menghani et al., 2024): the input plus its normalised low-rank product.

    `values` are the names of input and output.
    """
    reads, writes = values
    down, up, after = (f"{prefix}.{name}" for name in names.laurel)
    yield _product(OpKind.OUTPUT, down, rank, hidden, reads, writes)
    yield _product(OpKind.OUTPUT, up, hidden, rank, writes, writes)
    yield Normalise(norm, hidden, (writes,), (writes,), Weight(f"{after}.weight", (hidden,)))
    yield Add(hidden, OpKind.OUTPUT, (reads, writes), (writes,))


def _product(kind: OpKind, name: str, outputs: int, inputs: int, reads: str, writes: str) -> Product:
    return Product(kind, (Weight(f"{name}.weight", (outputs, inputs)),), (), (reads,), (writes,))
