"""Steps of the Triton backend whose decodes share blocks: found in the tables, sent to the device once, and used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder
from model_support.tiny import make_model, save_model

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.prefix.tables import PrefixTables
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.shared_prefix import grouping
from plimsoll_runtime.execution.attention.shared_prefix.grouping import SharedPrefix
from plimsoll_runtime.execution.attention.shared_prefix.planner import PrefixPlan
from plimsoll_runtime.execution.attention.step_tables import paged_batch
from plimsoll_runtime.execution.graphs.capture import CudaCapture
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

pytest.importorskip("triton")

BLOCK = 16
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
LATENT = AttentionShape(heads=4, kv_heads=1, head_dim=24, scale=0.25, latent=True)
SYSTEM = list(range(1, 10))


@pytest.fixture
def _anything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "LAUNCH_BYTES", 0)


@contextmanager
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Collect the number of decodes of each launch over shared prefixes."""
    from plimsoll_kernels.paged_attention.prefix.kernel import launch_prefix

    seen = list[int]()

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[3].decodes)
        return launch_prefix(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr("plimsoll_kernels.paged_attention.decode.kernel.launch_prefix", noted)
        yield seen


def batch_of(own: dict[int, int], rows: int = 1, rest: tuple[AttentionBatch, ...] = ()) -> AttentionBatch:
    """Return sequences with a block of `own` tokens after the shared ones; a chunk of `rows` rows."""
    tables = [*([*SYSTEM, block] for block in own), [30, 31]]
    contexts = [*(len(SYSTEM) * BLOCK + tokens for tokens in own.values()), 20]
    counts = [1] * len(own) + [rows]
    return AttentionBatch(counts, contexts, BlockTables.of(tables), torch.zeros(sum(counts), dtype=torch.int64), rest)


def cache_of(shapes: list[AttentionShape], device: str, **options: Any) -> KvCache:
    cache = KvCache(shapes, 40, BLOCK, torch.float32, torch.device(device), **options)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache


KINDS = {
    "plain": SHAPE,
    "window": replace(SHAPE, window=150),
    "soft cap": replace(SHAPE, softcap=2.0),
    "slopes": replace(SHAPE, alibi=Alibi((0.5, 0.3, 0.11, 0.002))),
}


@pytest.mark.long
@pytest.mark.usefixtures("_anything_pays")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_equals_the_reference(triton_device: str, kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    cache, plain = (cache_of([KINDS[kind]], device) for device in (triton_device, "cpu"))
    backend, reference = TritonBackend(cache), ReferenceBackend(plain)
    batch = batch_of({20: 3, 21: 5, 22: 9, 23: 6}, rows)
    query = torch.randn(len(batch.cells), 4, 16)
    with launched(monkeypatch) as seen:
        actual = backend.begin(replace(batch, cells=batch.cells.to(cache.device)))(
            0, query.to(cache.device), None, None
        )
    assert seen == [5 if rows == 1 else 4]
    torch.testing.assert_close(actual.cpu(), reference.begin(batch)(0, query, None, None), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@torch.inference_mode()
def test_a_graph_holds_it(triton_device: str) -> None:
    """A replay follows the tensors' contents: another group, another length, nothing."""
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    cache, plain = (cache_of([SHAPE], device) for device in (triton_device, "cpu"))
    backend, reference, device = TritonBackend(cache), ReferenceBackend(plain), cache.device
    query, batch = torch.randn(8, 4, 16), batch_of({20: 3, 21: 5, 22: 9, 23: 6})
    numbers = torch.zeros(2 * 8 + grouping.MOST_GROUPS + 1, dtype=torch.int32, device=device)
    paged = paged_batch(batch, cache)
    tables, contexts = (
        torch.zeros(8, 10, dtype=torch.int32, device=device),
        torch.ones(8, dtype=torch.int32, device=device),
    )
    tables[:5], contexts[:5] = paged.block_tables, paged.context_lens
    starts = torch.arange(9, dtype=torch.int32, device=device)
    filled = PagedBatch(starts, contexts, tables, 1, 160, 8, PrefixTables.of(numbers, 8))
    there = query.to(device)
    step = backend.over([filled], [torch.zeros(8, dtype=torch.int64)])
    capture = CudaCapture(device) if triton_device == "cuda" else Recorder()
    graph = capture(lambda: step.attend(0, there, None))
    expected = reference.begin(batch)(0, query[:5], None, None)
    for groups in ([((0, 1, 2, 3), 9)], [((1, 3), 8), ((0, 2), 9)], []):
        plan = PrefixPlan(tuple(SharedPrefix(*group) for group in groups), 5, BLOCK)
        numbers.copy_(torch.from_numpy(plan.numbers(8)))
        graph.replay()
        torch.testing.assert_close(graph.out[:5].cpu(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_anything_pays")
def test_the_device_is_told_once() -> None:
    from plimsoll_runtime.execution.attention.shared_prefix.planner import StepPrefixes

    prefixes = StepPrefixes(cache_of([SHAPE], "cpu"))
    [first] = prefixes.of(batch_of({20: 3, 21: 5}))
    [again] = prefixes.of(batch_of({20: 4, 21: 6}))
    assert first is not None
    assert again is first
    assert first.shared.tolist() == [9 * BLOCK, 9 * BLOCK, 0]
    [other] = prefixes.of(batch_of({20: 5, 22: 1, 21: 7}))
    assert other is not None
    assert other.starts.tolist() == [0, *[3] * grouping.MOST_GROUPS]


@pytest.mark.usefixtures("_anything_pays")
def test_each_group_of_the_cache_has_its_own() -> None:
    """The second group is latent, which never shares, and the third has no equal blocks."""
    from plimsoll_runtime.execution.attention.shared_prefix.planner import StepPrefixes

    prefixes = StepPrefixes(cache_of([SHAPE, LATENT, SHAPE], "cpu", groups=[[0], [1], [2]]))
    alone = replace(
        batch_of({20: 3, 21: 5}), block_tables=BlockTables.of([[*range(1, 11)], [*range(11, 21)], [30, 31]])
    )
    batch = batch_of({20: 3, 21: 5}, rest=(batch_of({20: 3, 21: 5}), alone))
    assert [shared is not None for shared in prefixes.of(batch)] == [True, False, False]


def test_a_little_is_not_worth_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    with launched(monkeypatch) as seen:
        TritonBackend(cache_of([SHAPE], "cpu")).begin(batch_of({20: 3, 21: 5}))
    assert seen == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {"num_hidden_layers": 2}), made)
    return made


@pytest.mark.long
def test_texts_are_the_same(folder: Path, triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a prefix cache, in one batch: three requests after a cached system prompt, one after another."""
    from plimsoll_runtime.execution.attention.backends.triton import TritonBackend

    if triton_device == "cpu":
        able = replace(TritonBackend.capabilities, devices=("cpu",))
        monkeypatch.setattr(TritonBackend, "capabilities", able)
    monkeypatch.setenv("PLIMSOLL_CACHE", str(folder / "cache"))
    system = [3 + number * number % 17 for number in range(9 * BLOCK)]
    prompts = [[*system, 4, 5, 6], [*system, 7], [*system, 8, 9], [*system[::-1], 4]]

    def texts(least: float) -> tuple[list[list[int]], list[int]]:
        monkeypatch.setattr(grouping, "LAUNCH_BYTES", least)
        options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory": "8MiB", "max_model_len": 256}
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        with launched(monkeypatch) as seen, LLM(str(folder), attention_backend="triton", **options) as llm:
            llm.generate([system], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
            results = llm.generate(prompts, [params] * len(prompts))
        return [list(result.outputs[0].token_ids) for result in results], seen

    alone, without = texts(2.0**60)
    shared, beside = texts(0.0)
    assert without == []
    assert beside.count(4) >= 2 * 3, "two layers of three steps"
    assert shared == alone
