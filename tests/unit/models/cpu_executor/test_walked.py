"""Every kind of op and layer on the CPU kernels: torch's results, and always the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_support.instructions import Build
from model_support.forward import hidden_states
from model_support.random_weights import RandomWeights, reader_of, reading
from model_support.tiny import prompts

from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.threads import share, thread_count
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.ops.router import Route
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.spec.attention import (
    Alibi,
    AttentionShape,
    Growth,
    HeadNorm,
    LatentAttention,
    RopeSpec,
    SelfAttention,
)
from plimsoll_runtime.models.spec.decoder import DecoderSpec, Embedding, Head, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import (
    ClampedGate,
    GatedMlp,
    Mixture,
    PlainMlp,
    Routing,
    SparseMixer,
    TopK,
)
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import (
    DeltaShape,
    DualShape,
    GatedDelta,
    Griffin,
    Mamba,
    Mamba2,
    Recurrent,
    ShortConvolution,
)
from plimsoll_runtime.models.spec.tensor_names import Names

HIDDEN, VOCAB, POSITIONS = 40, 20, 256
"""No width is a multiple of a tile's step, and some inner ones are odd."""
[PROMPT] = prompts((90,))
RMS, LAYER = Norm(1e-5), Norm(1e-3, kind="layer", biased=True)
ROPE = RopeSpec(head_dim=32, theta=1e4)
SHAPE = AttentionShape(heads=3, kv_heads=1, head_dim=32, scale=0.2)
GROUPS = AttentionShape(heads=6, kv_heads=2, head_dim=16, scale=0.2, window=24)
ATTENTION = SelfAttention(SHAPE, ROPE)
LATENT = LatentAttention(
    heads=3, rank=32, plain=24, value=20, rope=replace(ROPE, head_dim=16), scale=0.2, norm=Norm(1e-4)
)
MLP = GatedMlp(72)
LAYERS = LayerSpec(ATTENTION, MLP, RMS)
NAMES = Names(
    positions="model.embed_positions",
    embedding_norm="model.embed_norm",
    norms=("input_norm", "attention_norm", "mlp_norm", "down_norm"),
)

PLAIN = replace(NAMES, experts=replace(NAMES.experts, gate_up=("mlp.experts.{}.up_proj",)))


def decoder(*layers: LayerSpec, **options: Any) -> DecoderSpec:
    """Return a decoder with each of these layers once, at least two."""
    every = layers if len(layers) > 1 else layers * 2
    spec = DecoderSpec("Walked", VOCAB, HIDDEN, every, POSITIONS, RMS, names=NAMES)
    return replace(spec, **options)


def heads(**options: Any) -> LayerSpec:
    """Return a layer with other attention."""
    return replace(LAYERS, mixer=replace(ATTENTION, **options))


def experts(routing: Routing, *, chosen: int = 3, **options: Any) -> LayerSpec:
    """Return a layer with a mixture of 24 experts."""
    return replace(LAYERS, mlp=replace(Mixture(24, chosen, 33, routing), **options))


def recurrent(mixer: Recurrent) -> DecoderSpec:
    """Return recurrent layers and one attention layer."""
    own = replace(LAYERS, mixer=mixer)
    return decoder(own, LAYERS, own)


def latent(**options: Any) -> LayerSpec:
    """Return a layer with latent attention."""
    return replace(LAYERS, mixer=replace(LATENT, **options))


SPECS: Mapping[str, DecoderSpec] = {
    "plain": decoder(LAYERS),
    "untied-tied": decoder(LAYERS, head=Head(tied=True, bias=True, scale=0.5)),
    **{f"gated-{name}": decoder(replace(LAYERS, mlp=GatedMlp(72, name))) for name in ("gelu", "relu", "relu2")},
    **{
        f"plain-{name}": decoder(replace(LAYERS, mlp=PlainMlp(72, name, bias=True)))
        for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2")
    },
    "layer-norm": decoder(replace(LAYERS, norm=LAYER), final_norm=LAYER),
    "layer-norm-no-bias": decoder(
        replace(LAYERS, norm=replace(LAYER, biased=False)), final_norm=replace(LAYER, offset=1)
    ),
    "layer-norm-nothing": decoder(replace(LAYERS, norm=replace(LAYER, biased=False, weighted=False))),
    "rms-nothing": decoder(replace(LAYERS, norm=Norm(1e-6, weighted=False)), final_norm=Norm(1e-5, offset=1)),
    "no-final-norm": decoder(LAYERS, final_norm=None),
    "several-norms": decoder(LAYERS, replace(LAYERS, norm=LAYER), replace(LAYERS, norm=Norm(0.1))),
    "inner-sizes": decoder(*(replace(LAYERS, mlp=GatedMlp(inner)) for inner in (71, 24, 101, 40))),
    "attention-sizes": decoder(
        heads(shape=GROUPS, rope=replace(ROPE, head_dim=16)), LAYERS, heads(shape=GROUPS, rope=None)
    ),
    "mlp-kinds": decoder(LAYERS, replace(LAYERS, mlp=PlainMlp(30, "gelu")), LAYERS),
    "parallel": decoder(replace(LAYERS, residual="parallel", norm=LAYER)),
    "parallel-one-norm": decoder(replace(LAYERS, residual="parallel-one-norm", norm=LAYER, scale=0.3)),
    "parallel-no-norm": decoder(replace(LAYERS, residual="parallel", before=False), LAYERS),
    "post-norms-only": decoder(replace(LAYERS, before=False, after=True)),
    "post-norms-scaled": decoder(replace(LAYERS, after=True, norm=LAYER, scale=0.4)),
    "scaled": decoder(replace(LAYERS, scale=0.22)),
    "no-rope": decoder(heads(rope=None), LAYERS),
    "no-rope-at-all": decoder(heads(rope=None)),
    "partial-rope": decoder(heads(rope=replace(ROPE, head_dim=10))),
    "pairs": decoder(heads(rope=replace(ROPE, pairs=True))),
    "partial-pairs": decoder(heads(rope=replace(ROPE, head_dim=22, pairs=True)), heads(rope=replace(ROPE, head_dim=6))),
    "clipped": decoder(heads(clip=0.7, qkv_bias=True, output_bias=True)),
    "positions": decoder(heads(rope=None), embedding=Embedding(positions=POSITIONS + 2, first_position=2)),
    "embedding": decoder(LAYERS, embedding=Embedding(scale=3.0, positions=POSITIONS, norm=LAYER)),
    "head-norm": decoder(heads(head_norm=HeadNorm(Norm(1e-5, offset=1)))),
    "head-norm-layer": decoder(heads(head_norm=HeadNorm(Norm(1e-3, kind="layer")))),
    "head-norm-own": decoder(heads(shape=GROUPS, rope=None, head_norm=HeadNorm(Norm(1e-3, kind="layer"), own=True))),
    "head-norm-together": decoder(heads(shape=GROUPS, rope=None, head_norm=HeadNorm(RMS, together=True)), LAYERS),
    "head-norm-turned": decoder(heads(rope=replace(ROPE, head_dim=20), head_norm=HeadNorm(RMS, turned=True))),
    "chunks": decoder(
        heads(shape=replace(SHAPE, chunk=32)), heads(shape=replace(GROUPS, window=None, chunk=7), rope=None)
    ),
    "slopes": decoder(heads(shape=replace(SHAPE, alibi=Alibi((0.5, 0.1, 0.9))), rope=None)),
    "slopes-in-a-window": decoder(
        heads(shape=replace(GROUPS, alibi=Alibi((0.5, 0.1, 0.9, 0.2, 0.01, 1.0))), rope=None), LAYERS
    ),
    "coarse-slopes": decoder(heads(shape=replace(SHAPE, alibi=Alibi((0.5, 0.1, 0.9), coarse=True)))),
    "sinks": decoder(
        heads(shape=replace(SHAPE, sinks=True)), LAYERS, heads(shape=replace(GROUPS, sinks=True), rope=None)
    ),
    "experts": decoder(experts(TopK())),
    "experts-scaled": decoder(experts(TopK(renormalised=False, scale=3.0), activation="gelu_tanh")),
    "experts-sigmoid": decoder(experts(TopK("sigmoid", corrected=True, least=2.0), chosen=5)),
    "experts-softmax-corrected": decoder(experts(TopK(corrected=True, least=1e-9))),
    "experts-in-groups": decoder(experts(TopK("sigmoid", groups=6, open_groups=2, best=2))),
    "experts-in-groups-corrected": decoder(experts(TopK(corrected=True, groups=4, open_groups=3, best=3))),
    "experts-sparse-mixer": decoder(experts(SparseMixer(0.2), chosen=2)),
    "experts-sparse-mixer-of-more": decoder(experts(SparseMixer(0.01), chosen=4)),
    "experts-beside": decoder(experts(TopK(), shared=GatedMlp(50))),
    "experts-beside-gated": decoder(experts(TopK(), shared=GatedMlp(50, bias=True), shared_gated=True), LAYERS),
    "experts-post-normed": decoder(replace(experts(TopK()), after=True)),
    "experts-parallel": decoder(replace(experts(TopK()), residual="parallel", norm=LAYER)),
    "experts-no-norm": decoder(replace(experts(TopK()), before=False, scale=0.3)),
    "experts-of-wide-rows-in-parts": decoder(experts(TopK(), chosen=2, experts=3), hidden_size=3072),
    "experts-each-layer-its-own": decoder(
        experts(TopK(), inner=40), experts(TopK(), chosen=1, experts=17), LAYERS, experts(TopK(), chosen=24)
    ),
    "short-convolution": recurrent(ShortConvolution(inner=40, taps=3)),
    "short-convolution-biased": recurrent(ShortConvolution(inner=83, taps=5, bias=True)),
    "short-convolution-of-blocks": recurrent(ShortConvolution(inner=200, taps=4)),
    "short-convolution-one-tap": recurrent(ShortConvolution(inner=24, taps=1)),
    "growth": decoder(
        heads(growth=Growth(0.4, 16)),
        heads(rope=replace(ROPE, pairs=True), growth=Growth(0.2, 9.0, offset=1), head_norm=HeadNorm(RMS, turned=True)),
        heads(rope=None, growth=Growth(0.3, 7)),
    ),
    "head-norm-no-weights": decoder(heads(head_norm=HeadNorm(Norm(1e-5, weighted=False), turned=True)), LAYERS),
    "experts-biases": decoder(experts(TopK(), bias=True, router_bias=True)),
    "experts-clamped": decoder(experts(TopK(), bias=True, clamped=ClampedGate(1.7, 0.5), inner=40)),
    "experts-weigh-inputs": decoder(experts(TopK("sigmoid", renormalised=False), weighs_inputs=True), LAYERS),
    "experts-plain": decoder(experts(TopK(), plain=True, bias=True, activation="relu2"), names=PLAIN),
    "experts-plain-scaled": decoder(
        replace(experts(TopK(), plain=True, weighs_inputs=True), scale=0.3), LAYERS, names=PLAIN
    ),
    "dual-scan": recurrent(Mamba2(DualShape(heads=6, head_dim=11, groups=3, state=37), 4, 1e-5)),
    "dual-scan-whole-vectors": recurrent(
        Mamba2(DualShape(heads=3, head_dim=16, groups=1, state=64), 4, 1e-5, bias=True)
    ),
    "dual-scan-gate-after": recurrent(
        Mamba2(DualShape(heads=4, head_dim=12, groups=2, state=10), 3, 1e-5, gate_after=True, limits=(0.3, 1.2))
    ),
    "dual-scan-multiplied": recurrent(
        Mamba2(
            DualShape(heads=4, head_dim=12, groups=2, state=16),
            4,
            None,
            multipliers=(0.8, 1.1, 0.9, 1.2, 0.7),
            input_multiplier=0.9,
        )
    ),
    "delta-rule": recurrent(GatedDelta(DeltaShape(key_heads=2, value_heads=6, key_dim=13, value_dim=71), 4, 1e-6)),
    "delta-rule-whole-vectors": recurrent(
        GatedDelta(DeltaShape(key_heads=2, value_heads=4, key_dim=32, value_dim=64), 4, 1e-6)
    ),
    "delta-rule-in-turns": recurrent(
        GatedDelta(DeltaShape(key_heads=2, value_heads=4, key_dim=16, value_dim=20, in_turns=True), 4, 1e-6)
    ),
    "selective-scan": recurrent(Mamba(inner=83, state=9, rank=5, taps=4)),
    "selective-scan-normed": recurrent(Mamba(inner=64, state=16, rank=3, taps=3, bias=True, norm=RMS)),
    "gated-recurrence": recurrent(Griffin(inner=96, heads=3, taps=4, activation="gelu_tanh")),
    "gated-recurrence-odd-blocks": recurrent(Griffin(inner=75, heads=3, taps=4, activation="gelu")),
    "attention-gated": decoder(heads(gated=True), LAYERS),
    "latent": decoder(latent()),
    "latent-queries-of-a-vector": decoder(latent(query_rank=20, heads=13), latent(bias=True, query_rank=17)),
    "latent-pairs-growth": decoder(
        latent(rope=replace(LATENT.rope, pairs=True), growth=Growth(0.4, 16)), latent(plain=40, value=33, heads=2)
    ),
    "latent-wide": decoder(latent(rank=80, plain=33, value=48)),
    "latent-odd-rank": decoder(latent(rank=42, rope=RopeSpec(head_dim=6, theta=1e3)), LAYERS),
    "head-norm-own-turned": decoder(heads(head_norm=HeadNorm(replace(RMS, kind="layer"), own=True, turned=True))),
}


@pytest.fixture(params=SPECS)
def program(request: pytest.FixtureRequest) -> Program:
    return program_of(SPECS[request.param])


def fused(program: Program, dtype: torch.dtype) -> CpuExecutor:
    return CpuExecutor(program, reader_of(program, dtype))


@pytest.mark.matrix(4)
def test_as_torch_computes_it(program: Program, float32_build: Build) -> None:
    ours, theirs = fused(program, torch.float32), TorchDecoder(program, reader_of(program, torch.float32))
    hidden = hidden_states(ours, BACKENDS["cpu"], PROMPT, 50)
    expected = hidden_states(theirs, BACKENDS["torch"], PROMPT, len(PROMPT))
    torch.testing.assert_close(hidden, expected, rtol=2e-4, atol=2e-4)
    with torch.inference_mode():
        torch.testing.assert_close(ours.logits(expected), theirs.logits(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.matrix(12)
def test_the_same_bits_whatever_chunks_threads_and_earlier_steps(program: Program, build: Build) -> None:
    decoder, backend = fused(program, build.dtype), BACKENDS["cpu"]
    whole = hidden_states(decoder, backend, PROMPT, len(PROMPT))
    assert whole.isfinite().all()
    with torch.inference_mode():
        decoder._decoder._workspace._memory.fill_(0xFF)  # NaN in every element type
    before = thread_count()
    try:
        for chunk, threads in ((7, 3), (64, 1)):
            share(threads)
            assert torch.equal(hidden_states(decoder, backend, PROMPT, chunk), whole)
    finally:
        share(before)


def test_experts_that_no_row_has_chosen_are_not_read(build: Build) -> None:
    """Unused experts are filled with NaN, which would show in the result if they were read."""
    program = program_of(decoder(replace(LAYERS, mlp=Mixture(24, 2, 33, TopK("sigmoid", corrected=True)))))
    routes = [op for op in program.ops if isinstance(op, Route)]
    decoders = []
    for poisoned in ([], range(2, 24), [1]):
        tensors = RandomWeights(program)
        for route in routes:
            assert route.correction is not None
            tensors.put(route.correction.name, torch.tensor([100.0, 99.0] + [0.0] * 22))
        for name in tensors.shapes:
            if any(f"experts.{number}." in name for number in poisoned):
                tensors.put(name, torch.full(tensors.shapes[name], torch.nan))
        decoders.append(CpuExecutor(program, reading(program, tensors, build.dtype)))
    whole, unread, read = (hidden_states(each, BACKENDS["cpu"], PROMPT, 50) for each in decoders)
    assert whole.isfinite().all()
    assert torch.equal(whole, unread)
    assert read.isnan().all()


@pytest.mark.matrix(2)
def test_bfloat16_is_near(program: Program) -> None:
    if kernels(torch.bfloat16) is None:
        pytest.skip("the kernels were not built")
    torchs = TorchDecoder(program, reader_of(program, torch.float32))
    truth = hidden_states(torchs, BACKENDS["torch"], PROMPT, len(PROMPT))
    ours = hidden_states(fused(program, torch.bfloat16), BACKENDS["cpu"], PROMPT, len(PROMPT)).float()
    errors = (ours - truth).square().mean(-1).sqrt() / truth.square().mean(-1).sqrt()
    assert errors.quantile(0.25) < 0.05
    if not any(isinstance(op, Route) for op in program.ops):  # rounding may change the choice of a router
        assert errors.max() < 0.2
