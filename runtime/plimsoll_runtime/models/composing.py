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
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.ops.normalise import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.product import GatedProduct, Product
from plimsoll_runtime.models.ops.weight import HeadByHead, Weight
from plimsoll_runtime.models.program import Facts, Program
from plimsoll_runtime.models.spec.attention import HeadNorm, LatentAttention, Mixer, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.spec.feed_forward import FeedForward, GatedMlp, Mixture
from plimsoll_runtime.models.spec.layer import LayerSpec
from plimsoll_runtime.models.spec.norm import Norm

STATES, NORMED, HEADS, ATTENDED, INNER, ADDED, HIDDEN = "x", "normed", "heads", "attended", "inner", "added", "hidden"


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
            ops += _Layer(self, names.layer.format(index), index, layer).ops()
            starts.append(len(ops))
        if spec.final_norm is not None:
            ops.append(self.norm(spec.final_norm, names.final_norm, STATES, HIDDEN))
        head = Logits(
            spec.head,
            table if spec.head.tied else self._matrix(names.head, spec.vocab_size, self._hidden, as_is=True),
            self._vector(f"{names.head}.bias", spec.vocab_size) if spec.head.bias else None,
        )
        facts = Facts(spec.architecture, spec.vocab_size, self._hidden, spec.max_positions, spec.attention)
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
        order: HeadByHead | None = None,
    ) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
        """Weights and biases of `rows` outputs each, stored under as many names or, all of them, under one."""
        outputs = rows if len(names) == len(rows) else (sum(rows),)
        stored = [(f"{prefix}.{name}", n) for name, n in zip(names, outputs, strict=True)]
        parts = [self._matrix(name, n, inputs, order=order) for name, n in stored]
        biases = [self._vector(f"{name}.bias", n, order) for name, n in stored if biased]
        return tuple(parts), tuple(biases)

    def _matrix(
        self, name: str, outputs: int, inputs: int, *, as_is: bool = False, order: HeadByHead | None = None
    ) -> Weight:
        return Weight(f"{name}.weight", (outputs, inputs), self._names.transposed and not as_is, order)

    @staticmethod
    def _vector(name: str, size: int, order: HeadByHead | None = None) -> Weight:
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
    """One layer's ops."""

    def __init__(self, composer: _Composer, prefix: str, index: int, layer: LayerSpec) -> None:
        self._composer = composer
        self._names = composer._names
        self._hidden = composer._hidden
        self._prefix = prefix
        self._index = index
        self._layer = layer

    def ops(self) -> Iterator[Op]:
        """The mixer's, then the MLP's; each adds to the states that it has read, or that the other one has added to."""
        before_mixer, after_mixer, before_mlp, after_mlp = self._names.norms
        if self._layer.residual == "sequential":
            yield from self._before(before_mixer, NORMED)
            yield from self._attention(self._layer.mixer, self._read(NORMED))
            yield from self._after(after_mixer, OpKind.OUTPUT)
            yield from self._before(before_mlp, NORMED)
            yield from self._mlp(self._layer.mlp, self._read(NORMED))
            yield from self._after(after_mlp, OpKind.DOWN)
            return
        yield from self._before(before_mixer, NORMED)
        mlp_reads = NORMED
        if self._layer.residual == "parallel":
            mlp_reads = "normed_mlp"
            yield from self._before(before_mlp, mlp_reads)
        yield from self._mlp(self._layer.mlp, self._read(mlp_reads))
        states, of_mlp = (STATES,), "added_mlp"
        yield Add(self._hidden, OpKind.DOWN, (STATES, ADDED), (of_mlp,), self._layer.scale)
        yield from self._attention(self._layer.mixer, self._read(NORMED))
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

    def _attention(self, attention: Mixer, reads: str) -> Iterator[Op]:
        if isinstance(attention, LatentAttention):
            rope = attention.rope.within(self._composer.length)
            latent = LatentComposer(replace(attention, rope=rope), self._index, self._hidden, self._names, self._prefix)
            yield from latent.ops(reads, ADDED)
            return
        shape, names = attention.shape, self._names
        widths = (shape.query_width, shape.key_width, shape.key_width)
        order = None
        if names.interleaved:
            order = HeadByHead(shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
        parts = self._composer.linear(
            self._prefix, names.query_key_value, widths, self._hidden, biased=attention.qkv_bias, order=order
        )
        yield Product(OpKind.QKV, *parts, (reads,), (HEADS,), clip=attention.clip)
        yield from self._turned(attention)
        sinks = _Composer._vector(f"{self._prefix}.{names.sinks}", shape.heads) if shape.sinks else None
        yield Attend(self._index, shape, (HEADS,), (ATTENDED,), sinks)
        output = self._composer.linear(
            self._prefix, (names.output,), (self._hidden,), shape.query_width, biased=attention.output_bias
        )
        yield Product(OpKind.OUTPUT, *output, (ATTENDED,), (ADDED,))

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
        if isinstance(mlp, GatedMlp):
            parts = self._composer.linear(
                self._prefix, names.gate_up, (mlp.inner, mlp.inner), self._hidden, biased=mlp.bias
            )
            yield GatedProduct(*parts, mlp.activation, (reads,), (INNER,))
        else:
            parts = self._composer.linear(self._prefix, names.gate_up[-1:], (mlp.inner,), self._hidden, biased=mlp.bias)
            yield Product(OpKind.GATE_UP, *parts, (reads,), (INNER,), mlp.activation)
        down = self._composer.linear(self._prefix, (names.down,), (self._hidden,), mlp.inner, biased=mlp.bias)
        yield Product(OpKind.DOWN, *down, (INNER,), (ADDED,))
