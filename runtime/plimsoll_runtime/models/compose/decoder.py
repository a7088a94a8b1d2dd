"""Composes a decoder spec into a program: the ops of each layer, and the names of values and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from plimsoll_runtime.models.compose.attention import AttentionComposer, LatentComposer
from plimsoll_runtime.models.compose.feed_forward import BesideComposer, MixtureComposer, MlpComposer
from plimsoll_runtime.models.compose.recurrent import RecurrentComposer
from plimsoll_runtime.models.compose.streams import InputComposer, StreamComposer, laurel
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.logits import Logits
from plimsoll_runtime.models.ops.matmul import Linears
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op, Stateful
from plimsoll_runtime.models.ops.pooling_head import PooledHead, Project
from plimsoll_runtime.models.ops.scale import Scale, ScaleAll
from plimsoll_runtime.models.ops.weight import InStack, Weight
from plimsoll_runtime.models.program import Facts, Program
from plimsoll_runtime.models.spec.attention import LatentAttention, SelfAttention
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Mixer, ParallelMixer, attention_of, owner_of
from plimsoll_runtime.models.spec.feed_forward import FeedForward, Mixture, MixtureBeside
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.pooling import Dense, Pooling, TokenScores, VectorNorm

STATES, NORMED, ADDED, LAUREL, HIDDEN = "x", "normed", "added", "laurel", "hidden"


def program_of(spec: DecoderSpec, max_model_len: int | None = None, pooling: Pooling | None = None) -> Program:
    """Return the program of a decoder for contexts of `max_model_len` tokens; None: all positions of the model.

    A rope that depends on the context length is chosen once, because cached keys have been rotated with it. With
    `pooling` the program returns vectors instead of logits.
    """
    return _Composer(spec, max_model_len or spec.max_positions).program(pooling)


class _Composer:
    def __init__(self, spec: DecoderSpec, length: int) -> None:
        self._spec = spec
        self.length = length
        self._names = spec.names
        self._hidden = spec.hidden_size
        self.inputs = None if spec.inputs is None else InputComposer(spec, spec.inputs)
        self.streams = None if spec.altup is None else StreamComposer(spec, spec.altup)

    def program(self, pooling: Pooling | None) -> Program:
        spec, names = self._spec, self._names
        table = self._matrix(names.embedding, spec.vocab_size, self._hidden)
        ops = [*self._start(table)]
        starts = [len(ops)]
        caches: dict[int, int] = {}
        for index, layer in enumerate(spec.layers):
            owner = owner_of(layer.mixer)
            cache = len(caches) if owner is None else caches[owner]
            if owner is None and attention_of(layer.mixer) is not None:
                caches[index] = cache
            kept = sum(isinstance(op, Stateful) for op in ops)
            ops += _Layer(self, index, cache, kept).ops()
            starts.append(len(ops))
        ops += self.streams.end(STATES) if self.streams is not None else ()
        if spec.final_norm is not None:
            ops.append(self.norm(spec.final_norm, names.final_norm, STATES, HIDDEN))
        logits = table if spec.head.tied else self._matrix(names.head, spec.vocab_size, self._hidden)
        head = self._logits(logits) if pooling is None else self._pooled(pooling, logits)
        states = tuple(op.keeps for op in ops if isinstance(op, Stateful))
        facts = Facts(
            spec.architecture,
            spec.vocab_size,
            self._hidden,
            spec.max_positions,
            tuple(shape for shape in spec.attention if not shape.whole),
            states,
            whole=tuple(shape for shape in spec.attention if shape.whole),
            pooling=pooling,
            second_text=spec.vocab_size if spec.embedding.texts > 1 else 0,
        )
        own = f"{names.head}.weight"
        unread = spec.head.tied or logits not in head.weights()
        ignored = (*names.ignored, own) if unread else names.ignored
        reads_table = any(weight.name == table.name for weight in head.weights())
        return Program(
            facts,
            tuple(ops),
            head,
            tuple(starts),
            ignored,
            names.beyond,
            spec.is_part,
            self._lasting(),
            (own, table.name) if reads_table else None,
        )

    def _lasting(self) -> int:
        return sum(each.width for each in (self.inputs, self.streams) if each is not None)

    def _logits(self, matrix: Weight) -> Logits:
        spec, name = self._spec, f"{self._names.head}.bias"
        return Logits(spec.head, matrix, self._vector(name, spec.vocab_size) if spec.head.bias else None)

    def _pooled(self, pooling: Pooling, logits: Weight) -> PooledHead:
        parts: list[Project | Normalise] = []
        width = self._hidden
        for layer in pooling.layers:
            match layer:
                case Dense():
                    matrix = Weight(f"{layer.name}.weight", (layer.outputs, width), wide=True)
                    bias = self._vector(f"{layer.name}.bias", layer.outputs) if layer.bias else None
                    parts.append(Project((matrix,), bias, layer.activation))
                    width = layer.outputs
                case VectorNorm():
                    parts.append(self.norm(layer.norm, layer.name, STATES, STATES))
                case TokenScores():
                    rows = (InStack(token, self._spec.vocab_size) for token in layer.token_ids)
                    parts.append(Project(tuple(replace(logits, shape=(width,), stack=row) for row in rows)))
                    width = len(layer.token_ids)
        return PooledHead(self._hidden, tuple(parts), pooling.normalised)

    def _start(self, table: Weight) -> Iterator[Op]:
        embedding, names = self._spec.embedding, self._names
        texts = self._matrix(names.texts, embedding.texts, self._hidden) if embedding.texts else None
        yield Embed(table, (STATES,), embedding.scale, texts=texts)
        if embedding.positions is not None:
            positions = self._matrix(names.positions, embedding.positions, self._hidden)
            yield AddPositions(positions, embedding.first_position, (STATES,), (STATES,))
        if embedding.norm is not None:
            yield self.norm(embedding.norm, names.embedding_norm, STATES, STATES)
        if self.inputs is not None:
            yield from self.inputs.start(STATES)
        if self.streams is not None:
            yield from self.streams.start(STATES)

    def norm(self, norm: Norm, name: str, reads: str, writes: str) -> Normalise:
        """Return the op that normalises hidden states. `name` is its tensors' name without `.weight` and `.bias`."""
        weight = self._vector(f"{name}.weight", self._hidden) if norm.weighted else None
        bias = self._vector(f"{name}.bias", self._hidden) if norm.biased else None
        return Normalise(norm, self._hidden, (reads,), (writes,), weight, bias)

    @staticmethod
    def _matrix(name: str, outputs: int, inputs: int) -> Weight:
        return Weight(f"{name}.weight", (outputs, inputs))

    @staticmethod
    def _vector(name: str, size: int) -> Weight:
        return Weight(name, (size,))


class _Layer:
    """Composes the ops of one layer. `cache`: index of its KV cache; `kept`: number of stateful ops before it."""

    def __init__(self, composer: _Composer, index: int, cache: int, kept: int) -> None:
        self._composer = composer
        self._names = composer._names
        self._hidden = composer._hidden
        self._index = index
        self._prefix = self._names.layer.format(index)
        self._linears = Linears(self._prefix, self._names.transposed)
        self._cache = cache
        self._kept = kept
        self._layer = composer._spec.layers[index]

    def ops(self) -> Iterator[Op]:
        """Yield the ops of mixer and MLP and, if the model has them, of AltUp streams, per-layer inputs and the layer's
        scalar.
        """
        inputs, streams, hidden = self._composer.inputs, self._composer.streams, self._hidden
        if streams is not None:
            yield from streams.predicted(self._prefix, STATES)
        yield from self._sequential() if self._layer.residual == "sequential" else self._otherwise()
        if streams is not None:
            yield from streams.corrected(self._prefix, STATES)
        if inputs is not None:
            yield from inputs.added(self._prefix, self._index, STATES, ADDED)
            if streams is not None:
                yield from streams.with_added(ADDED)
            else:
                yield Add(hidden, OpKind.DOWN, (STATES, ADDED), (STATES,))
        if self._layer.scalar:
            scalar = self._linears.vector(self._names.scalar, 1)
            yield ScaleAll(hidden, scalar, (STATES,), (STATES,), OpKind.NORM)

    def _sequential(self) -> Iterator[Op]:
        """Yield the mixer's, then the MLP's ops; each adds its result to the states."""
        before_mixer, after_mixer, before_mlp, after_mlp = self._names.norms
        if self._layer.mixer is not None:
            if not self._layer.bare_mixer:
                yield from self._before(before_mixer, NORMED)
            yield from self._mixer(self._layer.mixer, STATES if self._layer.bare_mixer else self._read(NORMED))
            yield from self._after(after_mixer, OpKind.OUTPUT)
        if self._layer.laurel is not None:
            values, norm = (self._read(NORMED), LAUREL), self._layer.norm
            yield from laurel(self._prefix, self._names.streams, self._layer.laurel, self._hidden, norm, values)
            yield Add(self._hidden, OpKind.OUTPUT, (STATES, LAUREL), (STATES,))
            yield Scale((self._hidden,), (sqrt(0.5),), (STATES,), (STATES,), OpKind.OUTPUT)
        if self._layer.mlp is not None:
            yield from self._before(before_mlp, NORMED)
            yield from self._mlp(self._layer.mlp, self._read(NORMED))
            yield from self._after(after_mlp, OpKind.DOWN)

    def _otherwise(self) -> Iterator[Op]:
        """Yield the ops of a layer that normalises each residual sum (`normed`), or whose mixer and MLP both read the
        layer's input (`parallel`, `parallel-one-norm`).
        """
        before_mixer, after_mixer, before_mlp, after_mlp = self._names.norms
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
        """Yield the mixer's ops, which write ADDED."""
        if isinstance(mixer, SelfAttention):
            yield from self._attention(mixer, reads)
            return
        if isinstance(mixer, LatentAttention):
            own = replace(mixer, rope=mixer.rope.within(self._composer.length))
            yield from LatentComposer(own, self._cache, self._hidden, self._names, self._linears).ops(reads, ADDED)
            return
        if not isinstance(mixer, ParallelMixer):
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
        composer = self._composer
        own = AttentionComposer(attention, self._cache, self._hidden, composer.length, self._names, self._linears)
        return own.ops(reads, ADDED)

    def _mlp(self, mlp: FeedForward, reads: str) -> Iterator[Op]:
        """Yield the MLP's ops, which write ADDED."""
        if isinstance(mlp, Mixture):
            return MixtureComposer(mlp, self._hidden, self._names, self._linears).ops(reads, ADDED)
        if isinstance(mlp, MixtureBeside):
            beside = BesideComposer(mlp, self._hidden, self._layer.norm, self._names, self._linears)
            return beside.ops(STATES, reads, ADDED)
        names = self._names
        return MlpComposer(self._hidden, names.gate_up, names.down, self._linears).ops(mlp, reads, ADDED)
