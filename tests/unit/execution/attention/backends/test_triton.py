"""A whole decoder over the Triton backend equals one over the reference, with kernels only on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder
from kernel_support.rows import rows_of, state_of
from model_support.configs import LATENT
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_kernels.paged_attention.configs import DEFAULTS
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.shared_prefix import grouping
from plimsoll_runtime.execution.graphs.capture import Captured, CudaCapture
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.attention import RotatingAttention
from plimsoll_runtime.models.layers.linear import KernelLinear, grouped_linear
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.ops import experts
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.weights.sources.resolve import resolve

BLOCK = 16
MODELS = {
    "LlamaConfig": {"num_hidden_layers": 2},
    "Qwen3Config": {"num_hidden_layers": 2, "head_dim": 24},
    "Gemma3TextConfig": {"num_hidden_layers": 2, "head_dim": 16},
    "YoutuConfig": {**LATENT, "num_hidden_layers": 2},
}


GRAPHED = ("Gemma3TextConfig", "YoutuConfig")
"""Whole and windowed attention, and latent attention: each graph takes seconds to interpret."""


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_model(make_model(request.param, MODELS[request.param]), made)
    return made


def loaded(folder: Path, device: str) -> TorchDecoder:
    files = resolve(str(folder))
    decoder = load_decoder(files, program_of(describe(files.config)), torch.float32, device=torch.device(device))
    assert isinstance(decoder, TorchDecoder)
    return decoder


@torch.inference_mode()
def logits(decoder: TorchDecoder, backend: Any, device: str) -> Tensor:
    """Return logits of two sequences in a chunk and a decode step, whose blocks alternate."""
    cache = KvCache(decoder.outline.facts.attention, 9, BLOCK, torch.float32, torch.device(device))
    chosen: AttentionBackend = backend(cache)
    tables = [[5, 2], [1, 8]]
    lengths, rows = [0, 0], []
    for counts in ([20, 13], [1, 1], [1, 3]):
        positions = [torch.arange(n, n + count) for n, count in zip(lengths, counts, strict=True)]
        lengths = [n + count for n, count in zip(lengths, counts, strict=True)]
        places = zip(positions, tables, strict=True)
        cells = torch.tensor([t[p // BLOCK] * BLOCK + p % BLOCK for at, t in places for p in at.tolist()])
        step = chosen.begin(AttentionBatch(counts, lengths, BlockTables.of(tables), cells.to(device)))
        flat = torch.cat(positions).to(device)
        rows.append(decoder.logits(decoder(flat * 7 % decoder.outline.facts.vocab_size, flat, step)))
    return torch.cat(rows).cpu()


@pytest.mark.matrix(2)
def test_equals_the_reference(folder: Path, triton_device: str) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    actual = logits(loaded(folder, triton_device), TritonBackend, triton_device)
    expected = logits(loaded(folder, "cpu"), ReferenceBackend, "cpu")
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)


class Decodes:
    """Graphs of a model's decodes by the Triton kernels, and the same model with the reference on a CPU. Its cache is
    full.
    """

    def __init__(self, folder: Path, device_name: str, *, sequences: int, longest: int) -> None:
        from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

        device, decoder = torch.device(device_name), loaded(folder, device_name)
        self.cache, other = (
            KvCache(decoder.outline.facts.attention, 60, BLOCK, torch.float32, d) for d in (device, torch.device("cpu"))
        )
        for mine, theirs in zip((*self.cache.keys, *self.cache.values), (*other.keys, *other.values), strict=True):
            theirs.normal_()
            mine.copy_(theirs)
        self._state = state_of(self.cache, sequences, longest)
        self.graphs = DecodeGraphs(
            StepParts(decoder, self.cache),
            TritonBackend(self.cache),
            self._state,
            CudaCapture(device) if device_name == "cuda" else Recorder(),
            max_sequences=sequences,
            max_model_len=longest,
        )
        for each in self.graphs.wanted():
            each.add()
        self._plain, self._reference = loaded(folder, "cpu"), ReferenceBackend(other)

    def compare(self, tables: list[list[int]], contexts: list[int]) -> None:
        """Replay a decode of each context and compare it with the reference."""
        positions = torch.tensor(contexts) - 1
        places = zip(positions.tolist(), tables, strict=True)
        cells = torch.tensor([t[p // BLOCK] * BLOCK + p % BLOCK for p, t in places])
        batch = AttentionBatch([1] * len(contexts), contexts, BlockTables.of(tables), cells)
        tokens = positions * 7 % self._plain.outline.facts.vocab_size
        actual = self.graphs.run(rows_of(self._state, BLOCK, tokens, positions, batch))
        assert actual is not None
        expected = self._plain(tokens, positions, self._reference.begin(batch))
        torch.testing.assert_close(actual.cpu(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("folder", GRAPHED, indirect=True)
@torch.inference_mode()
def test_decodes_as_graphs(folder: Path, triton_device: str) -> None:
    """Replays other lengths and batches than the captured ones."""
    made = Decodes(folder, triton_device, sequences=4, longest=200)
    for contexts in ([30, 9, 150], [31, 10, 151], [1], [64, 64, 65, 17]):
        tables = [list(range(1 + 9 * i, 1 + 9 * i + 10)) for i in range(len(contexts))]
        made.compare(tables, contexts)
    expected = 3 if made.cache.shapes[0].latent else 5
    assert len(made.graphs._graphs) == expected, "for one sequence; for two and four with shared prefixes as well"


@pytest.mark.long
@pytest.mark.parametrize("folder", GRAPHED, indirect=True)
@torch.inference_mode()
def test_decodes_that_share_a_prefix_as_graphs(
    folder: Path, triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs share a prefix, then others, then none: the tables are sent when they change."""
    monkeypatch.setattr(grouping, "LAUNCH_BYTES", 0)
    decodes = Decodes(folder, triton_device, sequences=5, longest=256)
    cache, graphs = decodes.cache, decodes.graphs
    if cache.shapes[0].latent:
        assert graphs._shared is None, "heads of one sequence fill tiles already"
        return
    assert graphs._shared is not None
    captured: dict[Any, Captured] = dict(graphs._graphs)
    replayed: dict[Any, int] = dict.fromkeys(captured, 0)
    for key, graph in captured.items():
        graphs._graphs[key] = Captured(graph.out, partial(counted, replayed, key, graph.replay))
    one, two = list(range(1, 10)), list(range(10, 20))
    for prefixes, contexts in (
        ([one, two, one, two], [150, 163, 149, 166]),
        ([one, two, one, two], [151, 164, 150, 167]),
        ([one, two[:3], one, two, one], [152, 60, 151, 168, 145]),
        ([one, two], [153, 169]),
    ):
        tables = [[*known, *range(20 + 7 * i, 27 + 7 * i)] for i, known in enumerate(prefixes)]
        decodes.compare(tables, contexts)
    shared = {bucket: sum(n for key, n in replayed.items() if key[0] == bucket and key[2]) for bucket in (2, 4, 5)}
    assert (shared, sum(replayed.values())) == ({2: 0, 4: 2, 5: 1}, 4)


def counted(counts: dict[Any, int], key: Any, replay: Callable[[], None]) -> None:
    counts[key] += 1
    replay()


@pytest.mark.matrix(2)
@torch.inference_mode()
def test_chunks_in_pieces(folder: Path, triton_device: str) -> None:
    """Replays them with and without decodes, padded to buckets."""
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    device, decoder, plain = torch.device(triton_device), loaded(folder, triton_device), loaded(folder, "cpu")
    cache, other = (
        KvCache(decoder.outline.facts.attention, 9, BLOCK, torch.float32, d) for d in (device, torch.device("cpu"))
    )
    capture = CudaCapture(device) if triton_device == "cuda" else Recorder()
    pieces, state = PiecewiseDecoder(decoder, TritonBackend(cache), cache, capture, max_rows=40), state_of(cache, 2, 48)
    for each in pieces.wanted():
        each.add()
    reference = ReferenceBackend(other)
    tables, lengths = [[5, 2, 7], [1, 8, 3]], [0, 0]
    for counts in ([20, 13], [1, 7], [1, 1], [3, 1]):
        positions = [torch.arange(n, n + count) for n, count in zip(lengths, counts, strict=True)]
        lengths = [n + count for n, count in zip(lengths, counts, strict=True)]
        places = zip(positions, tables, strict=True)
        cells = torch.tensor([t[p // BLOCK] * BLOCK + p % BLOCK for at, t in places for p in at.tolist()])
        flat = torch.cat(positions)
        tokens = flat * 7 % decoder.outline.facts.vocab_size
        batch = AttentionBatch(counts, lengths, BlockTables.of(tables), cells.to(device))
        actual = pieces.run(rows_of(state, BLOCK, tokens, flat, batch))
        assert actual is not None
        expected = plain(tokens, flat, reference.begin(replace(batch, cells=cells)))
        torch.testing.assert_close(actual.cpu(), expected, rtol=2e-4, atol=2e-4)


MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "Qwen3MoeConfig": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    "GptOssConfig": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16},
}
"""Mixtures of experts without and with biases."""


@pytest.mark.matrix(2)
@pytest.mark.parametrize("config", MIXTURES)
def test_mixtures_by_the_grouped_product(
    config: str, triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    save_model(make_model(config, {"num_hidden_layers": 2, "head_dim": 16, **MIXTURES[config]}), tmp_path)
    expected = logits(loaded(tmp_path, "cpu"), ReferenceBackend, "cpu")
    made: list[Any] = []

    def product(weights: Iterator[Tensor], count: int, biases: Sequence[Tensor]) -> Any:
        made.append(grouped_linear(weights, count, biases, implementation="triton"))
        return made[-1]

    monkeypatch.setattr(experts, "grouped_linear", product)
    actual = logits(loaded(tmp_path, triton_device), TritonBackend, triton_device)
    assert [type(linear) for linear in made] == [KernelLinear] * 4
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)


def test_its_steps_rotate(folder: Path) -> None:
    """Otherwise the decoder would norm and rotate by itself without an error."""
    pytest.importorskip("triton")
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    cache = KvCache(loaded(folder, "cpu").outline.facts.attention, 2, BLOCK, torch.float32, torch.device("cpu"))
    batch = AttentionBatch([1], [1], BlockTables.of([[1]]), torch.tensor([16]))
    assert isinstance(TritonBackend(cache).begin(batch), RotatingAttention)
    assert not isinstance(ReferenceBackend(cache).begin(batch), RotatingAttention)


def test_each_shape_is_tuned_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from plimsoll_runtime.execution.attention.backends import triton

    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    whole = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
    windowed = replace(whole, window=9)
    cache = KvCache([windowed, whole, windowed, whole], 4, BLOCK, torch.float32, torch.device("cpu"))
    seen: list[Any] = []

    def tune(keys: Tensor, values: Tensor, wanted: Any, store: Any) -> Any:
        seen.append((keys, values, wanted.window))
        return DEFAULTS

    monkeypatch.setattr(triton, "tune_paged_attention", tune)
    latent = KvCache([AttentionShape(4, 1, 24, 0.25, latent=True)], 4, BLOCK, torch.float32, torch.device("cpu"))
    assert triton.tuned_configs(latent) == {}
    assert triton.tuned_configs(cache) == {windowed: DEFAULTS, whole: DEFAULTS}
    assert [window for _, _, window in seen] == [9, None]
    assert all(k is cache.keys[i] and v is cache.values[i] for i, (k, v, _) in enumerate(seen))


def test_a_graph_is_kept_for_each_division_of_the_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture over short contexts has too few programs for long ones."""
    pytest.importorskip("triton")
    from plimsoll_runtime.execution.attention.backends import triton

    monkeypatch.setattr(triton, "multiprocessors", lambda device: 64)
    whole = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
    cache = KvCache([replace(whole, window=600), whole], 2, BLOCK, torch.float32, torch.device("cpu"))
    backend = triton.TritonBackend(cache)
    key = backend.launch_key
    # 2 x 64 programs for 2 heads a sequence, at least 128 tokens for each program, 600 of them in the window
    assert [key(1, longest) for longest in (100, 600, 4096, 2**20)] == [(1, 1), (4, 4), (4, 32), (4, 64)]
    assert [key(sequences, 4096) for sequences in (4, 32, 64)] == [(4, 16), (2, 2), (1, 1)]
    assert backend.launch_lengths(1, 3000) == [255, 511, 1023, 2047, 3000]
    assert [backend.launch_lengths(sequences, 3000) for sequences in (32, 64)] == [[255, 3000], [3000]]
    for sequences in (1, 2, 5, 16, 64):
        last = {key(sequences, longest): longest for longest in range(1, 20_000)}
        assert backend.launch_lengths(sequences, 19_999) == list(last.values()), "all there are, each by its longest"
    latent = AttentionShape(heads=128, kv_heads=1, head_dim=576, scale=0.1, latent=True)
    cache = KvCache([latent], 2, BLOCK, torch.float32, torch.device("cpu"))
    # a sequence's 128 heads are 4 programs
    assert [triton.TritonBackend(cache).launch_key(count, 4096) for count in (1, 2, 64)] == [(32,), (16,), (1,)]
