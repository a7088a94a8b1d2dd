"""From a spec to its program: which ops a layer is, and what their values and tensors are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from plimsoll_runtime.models.latents import LatentComposer
from plimsoll_runtime.models.mixtures import MixtureComposer
from plimsoll_runtime.models.op_times import OpKind
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attend import Attend
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.heads import NormHeads, Rotate, ScaleQueries
from plimsoll_runtime.models.ops.latent import AttendLatent
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op, Stateful
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.scale import Scale
from plimsoll_runtime.models.ops.split import Split
from plimsoll_runtime.models.ops.weight import ByGroup, HeadByHead, Order, Weight
from plimsoll_runtime.models.program import Facts, Program
from plimsoll_runtime.models.recurrent import RecurrentComposer
from plimsoll_runtime.models.spec.attention import HeadNorm, LatentAttention, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import FeedForward, GatedMlp, Mixture
from plimsoll_runtime.models.spec.layer import LayerSpec
from plimsoll_runtime.models.spec.mixer import Beside, Mixer
from plimsoll_runtime.models.spec.norm import Norm

STATES, NORMED, HEADS, ATTENDED, INNER, ADDED, HIDDEN = "x", "normed", "heads", "attended", "inner", "added", "hidden"
GATE = "gate"


def program_of(spec: DecoderSpec, max_model_len: int | None = None) -> Program:
    """The program of a decoder, for contexts of so many tokens; None: of as many as it has positions.

    A rope that is another one for long contexts is chosen once: what is in the cache has been turned by it.
    """
    return _Composer(spec, max_model_len or spec.max_positions).program()


class _Composer:
    def __init__(self, spec: DecoderSpec, length: int) -> None:
        self._spec = spec
        self.length = length
        self._names = spec.names
        self._hidden = spec.hidden_size

    def program(self) -> Program:
        spec, names = self._spec, self._names
        table = self._matrix(names.embedding, spec.vocab_size, self._hidden, as_is=True)
        ops = [*self._start(table)]
        starts = [len(ops)]
        for index, layer in enumerate(spec.layers):
            attends = sum(isinstance(op, Attend | AttendLatent) for op in ops)
            kept = sum(isinstance(op, Stateful) for op in ops)
            ops += _Layer(self, names.layer.format(index), attends, kept, layer).ops()
            starts.append(len(ops))
        if spec.final_norm is not None:
            ops.append(self.norm(spec.final_norm, names.final_norm, STATES, HIDDEN))
        head = Logits(
            spec.head,
            table if spec.head.tied else self._matrix(names.head, spec.vocab_size, self._hidden, as_is=True),
            self._vector(f"{names.head}.bias", spec.vocab_size) if spec.head.bias else None,
        )
        states = tuple(op.keeps for op in ops if isinstance(op, Stateful))
        facts = Facts(spec.architecture, spec.vocab_size, self._hidden, spec.max_positions, spec.attention, states)
        ignored = (*names.ignored, f"{names.head}.weight") if spec.head.tied else names.ignored
        return Program(facts, tuple(ops), head, tuple(starts), ignored, names.beyond, spec.is_part)

    def _start(self, table: Weight) -> Iterator[Op]:
        embedding, names = self._spec.embedding, self._names
        yield Embed(table, (STATES,), embedding.scale)
        if embedding.positions is not None:
            positions = self._matrix(names.positions, embedding.positions, self._hidden, as_is=True)
            yield AddPositions(positions, embedding.first_position, (STATES,), (STATES,))
        if embedding.norm is not None:
            yield self.norm(embedding.norm, names.embedding_norm, STATES, STATES)

    def norm(self, norm: Norm, name: str, reads: str, writes: str) -> Normalise:
        """Over hidden states."""
        weight = self._vector(f"{name}.weight", self._hidden) if norm.weighted else None
        bias = self._vector(f"{name}.bias", self._hidden) if norm.biased else None
        return Normalise(norm, self._hidden, (reads,), (writes,), weight, bias)

    def linear(
        self,
        prefix: str,
        names: tuple[str, ...],
        rows: tuple[int, ...],
        inputs: int,
        *,
        biased: bool,
        order: Order | None = None,
    ) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
        """Weights and biases of `rows` outputs each, stored under as many names or, all of them, under one."""
        outputs = rows if len(names) == len(rows) else (sum(rows),)
        stored = [(f"{prefix}.{name}", n) for name, n in zip(names, outputs, strict=True)]
        parts = [self._matrix(name, n, inputs, order=order) for name, n in stored]
        biases = [self._vector(f"{name}.bias", n, order) for name, n in stored if biased]
        return tuple(parts), tuple(biases)

    def _matrix(
        self, name: str, outputs: int, inputs: int, *, as_is: bool = False, order: Order | None = None
    ) -> Weight:
        return Weight(f"{name}.weight", (outputs, inputs), self._names.transposed and not as_is, order)

    @staticmethod
    def _vector(name: str, size: int, order: Order | None = None) -> Weight:
        return Weight(name, (size,), order=order)

    @staticmethod
    def head_norm(norm: HeadNorm, attention: SelfAttention, prefix: str, names: tuple[str, str]) -> NormHeads:
        """Over heads of queries and of keys."""
        shape = attention.shape
        if not norm.norm.weighted:
            return NormHeads(norm, shape, None, None, (HEADS,), (HEADS,))
        query, key = (
            Weight(
                f"{prefix}.{name}.weight",
                (heads * shape.head_dim if norm.own or norm.together else shape.head_dim,),
                folded=(heads, shape.head_dim) if norm.own else None,
            )
            for name, heads in zip(names, (shape.heads, shape.kv_heads), strict=True)
        )
        return NormHeads(norm, shape, query, key, (HEADS,), (HEADS,))


class _Layer:
    """One layer's ops; so many layers before it attend, and ops before it keep something of sequences."""

    def __init__(self, composer: _Composer, prefix: str, attends: int, kept: int, layer: LayerSpec) -> None:
        self._composer = composer
        self._names = composer._names
        self._hidden = composer._hidden
        self._prefix = prefix
        self._attends = attends
        self._kept = kept
        self._layer = layer

    def ops(self) -> Iterator[Op]:
        """The mixer's, then the MLP's; each adds to the states that it has read, or that the other one has added to."""
        before_mixer, after_mixer, before_mlp, after_mlp = self._names.norms
        if self._layer.residual == "sequential":
            if self._layer.mixer is not None:
                yield from self._before(before_mixer, NORMED)
                yield from self._mixer(self._layer.mixer, self._read(NORMED))
                yield from self._after(after_mixer, OpKind.OUTPUT)
            if self._layer.mlp is not None:
                yield from self._before(before_mlp, NORMED)
                yield from self._mlp(self._layer.mlp, self._read(NORMED))
                yield from self._after(after_mlp, OpKind.DOWN)
            return
        assert self._layer.mixer is not None
        assert self._layer.mlp is not None
        if self._layer.residual == "normed":
            yield from self._mixer(self._layer.mixer, STATES)
            yield from self._normed_sum(after_mixer, OpKind.OUTPUT)
            yield from self._mlp(self._layer.mlp, STATES)
            yield from self._normed_sum(after_mlp, OpKind.DOWN)
            return
        yield from self._before(before_mixer, NORMED)
        mlp_reads = NORMED
        if self._layer.residual == "parallel":
            mlp_reads = "normed_mlp"
            yield from self._before(before_mlp, mlp_reads)
        yield from self._mlp(self._layer.mlp, self._read(mlp_reads))
        states, of_mlp = (STATES,), "added_mlp"
        yield Add(self._hidden, OpKind.DOWN, (STATES, ADDED), (of_mlp,), self._layer.scale)
        yield from self._mixer(self._layer.mixer, self._read(NORMED))
        yield Add(self._hidden, OpKind.OUTPUT, (of_mlp, ADDED), states, self._layer.scale)

    def _read(self, normed: str) -> str:
        return normed if self._layer.before else STATES

    def _before(self, name: str, writes: str) -> Iterator[Op]:
        if self._layer.before:
            yield self._composer.norm(self._layer.norm, f"{self._prefix}.{name}", STATES, writes)

    def _after(self, name: str, kind: OpKind) -> Iterator[Op]:
        if self._layer.after:
            yield self._composer.norm(self._layer.norm, f"{self._prefix}.{name}", ADDED, ADDED)
        yield Add(self._hidden, kind, (STATES, ADDED), (STATES,), self._layer.scale)

    def _normed_sum(self, name: str, kind: OpKind) -> Iterator[Op]:
        yield Add(self._hidden, kind, (STATES, ADDED), (STATES,), self._layer.scale)
        yield self._composer.norm(self._layer.norm, f"{self._prefix}.{name}", STATES, STATES)

    def _mixer(self, mixer: Mixer, reads: str) -> Iterator[Op]:
        """What it gives is ADDED."""
        if isinstance(mixer, SelfAttention):
            yield from self._attention(mixer, reads)
            return
        if isinstance(mixer, LatentAttention):
            own = replace(mixer, rope=mixer.rope.within(self._composer.length))
            yield from LatentComposer(own, self._attends, self._hidden, self._names, self._prefix).ops(reads, ADDED)
            return
        if not isinstance(mixer, Beside):
            prefix = f"{self._prefix}.{self._names.recurrent}"
            yield from RecurrentComposer(self._hidden, prefix, self._kept).ops(mixer, reads, ADDED)
            return
        attended = "added_attended"
        yield from self._scaled(mixer.attention_input, reads, "scaled")
        yield from self._attention(mixer.attention, reads if mixer.attention_input == 1.0 else "scaled")
        yield Scale((self._hidden,), (mixer.attention_scale,), (ADDED,), (attended,))
        yield from self._mixer(mixer.recurrent, reads)
        yield from self._scaled(mixer.recurrent_scale, ADDED, ADDED)
        yield Add(self._hidden, OpKind.OUTPUT, (attended, ADDED), (ADDED,))

    def _scaled(self, factor: float, reads: str, writes: str) -> Iterator[Op]:
        if factor != 1.0:
            yield Scale((self._hidden,), (factor,), (reads,), (writes,))

    def _attention(self, attention: SelfAttention, reads: str) -> Iterator[Op]:
        shape, names = attention.shape, self._names
        if attention.gated:
            yield from self._gated_heads(attention, reads)
        else:
            yield self._heads(attention, reads)
        yield from self._turned(attention)
        sinks = _Composer._vector(f"{self._prefix}.{names.sinks}", shape.heads) if shape.sinks else None
        yield Attend(self._attends, shape, (HEADS,), (ATTENDED,), sinks)
        if attention.gated:
            yield Multiply(shape.query_width, "sigmoid", (ATTENDED, GATE), (ATTENDED,), OpKind.ATTENTION)
        output = self._composer.linear(
            self._prefix, (names.output,), (self._hidden,), shape.query_width, biased=attention.output_bias
        )
        yield Product(OpKind.OUTPUT, *output, (ATTENDED,), (ADDED,))

    def _gated_heads(self, attention: SelfAttention, reads: str) -> Iterator[Op]:
        """Gates before queries, keys and values, though each head of queries has its own behind it in the files."""
        shape, (query, *others) = attention.shape, self._names.query_key_value
        order = ByGroup(shape.heads, (shape.head_dim, shape.head_dim), (1, 0))
        queries, keys = (
            self._composer.linear(self._prefix, names, rows, self._hidden, biased=attention.qkv_bias, order=o)
            for names, rows, o in (
                ((query,), (2 * shape.query_width,), order),
                (tuple(others), (shape.key_width, shape.key_width), None),
            )
        )
        yield Product(OpKind.QKV, queries[0] + keys[0], queries[1] + keys[1], (reads,), ("projected",))
        widths = (shape.query_width, shape.query_width + 2 * shape.key_width)
        yield Split(widths, ("projected",), (GATE, HEADS), OpKind.QKV)

    def _heads(self, attention: SelfAttention, reads: str) -> Product:
        """Queries, keys and values side by side."""
        shape, names = attention.shape, self._names
        widths = (shape.query_width, shape.key_width, shape.key_width)
        order: Order | None = None
        if names.interleaved:
            order = HeadByHead(shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        elif names.shards:
            order = ByGroup(names.shards, tuple(width // names.shards for width in widths), (0, 2, 1))
        parts = self._composer.linear(
            self._prefix, names.query_key_value, widths, self._hidden, biased=attention.qkv_bias, order=order
        )
        return Product(OpKind.QKV, *parts, (reads,), (HEADS,), clip=attention.clip)

    def _turned(self, attention: SelfAttention) -> Iterator[Op]:
        norm = attention.head_norm
        norms = [] if norm is None else [_Composer.head_norm(norm, attention, self._prefix, self._names.head_norms)]
        turns = []
        if attention.rope is not None:
            rope = attention.rope.within(self._composer.length)
            turns.append(Rotate(rope, attention.shape, (HEADS,), (HEADS,)))
        ops: list[Op] = [*turns, *norms] if norm is not None and norm.turned else [*norms, *turns]
        yield from ops
        if attention.growth is not None:
            yield ScaleQueries(attention.growth, attention.shape, (HEADS,), (HEADS,))

    def _mlp(self, mlp: FeedForward, reads: str) -> Iterator[Op]:
        names = self._names
        if isinstance(mlp, Mixture):
            yield from MixtureComposer(mlp, self._hidden, names, self._prefix).ops(reads, ADDED)
            return
        if isinstance(mlp, GatedMlp) and mlp.gate_scale != 1.0:
            yield from self._scaled_gate(mlp, reads)
        elif isinstance(mlp, GatedMlp):
            parts = self._composer.linear(
                self._prefix, names.gate_up, (mlp.inner, mlp.inner), self._hidden, biased=mlp.bias
            )
            yield GatedProduct(*parts, mlp.activation, (reads,), (INNER,))
        else:
            parts = self._composer.linear(self._prefix, names.gate_up[-1:], (mlp.inner,), self._hidden, biased=mlp.bias)
            yield Product(OpKind.GATE_UP, *parts, (reads,), (INNER,), mlp.activation)
        down = self._composer.linear(self._prefix, (names.down,), (self._hidden,), mlp.inner, biased=mlp.bias)
        yield Product(OpKind.DOWN, *down, (INNER,), (ADDED,))
        if isinstance(mlp, GatedMlp):
            yield from self._scaled(mlp.scale, ADDED, ADDED)

    def _scaled_gate(self, mlp: GatedMlp, reads: str) -> Iterator[Op]:
        for name, writes in zip(self._names.gate_up, (GATE, INNER), strict=True):
            parts = self._composer.linear(self._prefix, (name,), (mlp.inner,), self._hidden, biased=mlp.bias)
            yield Product(OpKind.GATE_UP, *parts, (reads,), (writes,))
        yield Scale((mlp.inner,), (mlp.gate_scale,), (GATE,), (GATE,), OpKind.GATE_UP)
        yield Multiply(mlp.inner, mlp.activation, (INNER, GATE), (INNER,), OpKind.GATE_UP)
