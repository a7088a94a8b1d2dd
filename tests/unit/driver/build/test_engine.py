"""Errors of engines that cannot be built have the numbers and say what to change."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from model_support.gguf_files import write_gguf
from model_support.tiny import make_model, save_model

from plimsoll_kernels.cpu.library import VARIABLE, runnable
from plimsoll_kernels.cpu.threads import thread_count
from plimsoll_runtime.driver.build import engine as building
from plimsoll_runtime.driver.build import loader, memory_plan
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.errors import MemoryLimitError, SourceError, UsageError
from plimsoll_runtime.execution.kv.offload.open import staging_bytes
from plimsoll_runtime.models.decoder import Decoder

HEADS = {"head_dim": 16, "hidden_size": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    save_model(make_model("LlamaConfig", HEADS), made)
    return made


def build(model: Path, **options: Any) -> EngineCore:
    config = EngineConfig(**{"model": str(model), "dtype": "float32", "threads": 1, **options})
    return build_engine(config, lambda stage, fraction: None)


def say_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Set the free memory to `size` bytes."""
    for module in (loader, memory_plan):
        monkeypatch.setattr(module, "free_memory", lambda device: size)


def test_the_tokenizers_end_of_text_ends_an_answer(tmp_path: Path) -> None:
    save_model(make_model("LlamaConfig", HEADS), tmp_path)
    settings = {"eos_token": "w3", "added_tokens_decoder": {"3": {"content": "w3"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert build(tmp_path, kv_memory="1MiB").info.eos_token_ids == [2, 3]


def test_what_there_is_to_say_of_the_device_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "log_findings", lambda: ("no bfloat16", "a slice"))
    assert build(folder, kv_memory="1MiB").info.findings == ("no bfloat16", "a slice")


def test_kv_memory_is_exact_to_a_block(folder: Path) -> None:
    block = 16 * 3 * 2 * 2 * 16 * 4
    info = build(folder, kv_memory="1000000", max_model_len=64).info
    assert info.kv_bytes == 1000000 // block * block
    assert info.num_blocks == 1000000 // block, "the padding block included"


def test_kv_memory_for_less_than_a_sequence(folder: Path) -> None:
    with pytest.raises(
        MemoryLimitError, match=r"would hold 48 tokens, but a sequence may have 100, for which it needs"
    ):
        build(folder, kv_memory="50000", max_model_len=100)
    with pytest.raises(MemoryLimitError, match=r"would hold 0 tokens, .* raise --kv-memory"):
        build(folder, kv_memory="1KiB")


def test_frames_before_a_disk_are_paid_from_the_same_memory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_free(monkeypatch, 200 * 2**20)
    disk = {"kv_disk": str(tmp_path), "kv_disk_size": "1MiB"}
    alone, staged = (build(folder, kv_memory="100%", **options).info for options in ({}, disk))
    block = alone.kv_bytes // alone.num_blocks
    assert staged.kv_bytes + staging_bytes(staged.num_blocks, block) < alone.kv_bytes + block
    assert staged.kv_bytes + staging_bytes(staged.num_blocks, block) > alone.kv_bytes - 4 * 2**20
    with pytest.raises(MemoryLimitError, match=r"of frames between it and --kv-disk, but"):
        build(folder, kv_memory=str(alone.kv_bytes), **disk)


def test_weights_that_do_not_fit_are_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say_free(monkeypatch, 2**16)
    monkeypatch.delattr(loader, "load_decoder")
    with pytest.raises(MemoryLimitError, match=r"the weights need 0\.3\d MiB, but 0\.06 MiB are free"):
        build(folder)


def test_a_step_that_leaves_no_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say_free(monkeypatch, 2**20)
    with pytest.raises(MemoryLimitError, match=r"of which a step takes .* lower --max-model-len, --max-batch-tokens"):
        build(folder, max_batch_tokens=100_000)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_weights_that_may_not_be_read(form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a file of another user, because root may read any file."""
    model = folder
    if form == "gguf":
        model = tmp_path / "m.gguf"
        write_gguf(make_model("LlamaConfig", HEADS), model, Kind.F32)
    plain_open = Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> BinaryIO:
        if self.suffix == f".{form}":
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        opened: BinaryIO = plain_open(self, *args, **options)
        return opened

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=f"{form} cannot be read: .*Permission denied"):
        build(model)


def test_bfloat16_stays_where_our_kernels_serve_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(make_model("LlamaConfig", HEADS).to(torch.bfloat16), tmp_path)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    if not runnable():
        pytest.skip("no CPU kernels of ours run here")
    assert build(tmp_path, dtype="auto", kv_memory="1MiB").info.dtype == "bfloat16"
    for options in ({"block_size": 8}, {"attention_backend": "torch"}):
        assert build(tmp_path, dtype="auto", kv_memory="1MiB", **options).info.dtype == "float32"


def test_instructions_that_cannot_be_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "neon")
    with pytest.raises(UsageError, match="PLIMSOLL_CPU_ISA=neon is unknown; choose avx2, avx512, avx512_bf16, amx"):
        build(folder)


@pytest.mark.usefixtures("threads_as_before")
def test_more_threads_than_cores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    for threads, warned in ((2, 0), (3, 1), (None, 0)):
        caplog.clear()
        build(folder, threads=threads, kv_memory="1MiB")
        assert thread_count() == (threads or 2)
        assert sum("threads share 2 cores" in r.getMessage() for r in caplog.records) == warned


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_torch_has_one_thread_left_where_every_step_is_our_kernels(folder: Path, backend: str) -> None:
    if backend == "cpu" and not runnable():
        pytest.skip("no CPU kernels here")
    build(folder, threads=2, attention_backend=backend, kv_memory="1MiB")
    assert thread_count() == 2
    assert torch.get_num_threads() == (1 if backend == "cpu" else 2)
    build(folder, threads=1, attention_backend=backend, kv_memory="1MiB")
    assert thread_count() == torch.get_num_threads() == 1


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize(("threads", "backend", "left"), [(2, "cpu", {0, 1}), (1, "cpu", set()), (2, "torch", set())])
def test_kernels_that_have_all_cores_leave_one_while_its_caller_computes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int, backend: str, left: set[int]
) -> None:
    if not runnable():
        pytest.skip("no CPU kernels here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    told: list[int] = []
    monkeypatch.setattr(building, "leave", told.append)
    engine = build(folder, threads=threads, attention_backend=backend, kv_memory="1MiB", overlap=True)
    engine.add(AddRequest("r", [1, 2, 3], RequestContext(SamplingParams(max_tokens=5, temperature=0.0), seed=0)))
    while engine.has_work:
        engine.step()
    assert set(told) == left
    assert not left or told[-1] == 0


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize("overlap", [True, False])
def test_each_of_two_engines_computes_with_its_own_threads(folder: Path, overlap: bool) -> None:
    """The torch backend keeps its two threads, although the engine loaded after it leaves one to torch."""
    if not runnable():
        pytest.skip("no CPU kernels here")
    seen: dict[str, set[tuple[int, int]]] = {}

    class Watch:
        """A probe that records the threads of each step."""

        def __init__(self, backend: str) -> None:
            self.timeline = Timeline()
            self._seen = seen.setdefault(backend, set())

        def watch_decoder(self, decoder: Decoder) -> Decoder:
            call = decoder.logits

            def logits(hidden: torch.Tensor) -> torch.Tensor:
                self._seen.add((thread_count(), torch.get_num_threads()))
                return call(hidden)

            decoder.logits = logits  # type: ignore[method-assign]
            return decoder

        def watch_runner(self, runner: Runner) -> Runner:
            self._seen.clear()  # of the warm-up
            return runner

    options: dict[str, Any] = {"kv_memory": "1MiB", "overlap": overlap}
    engines = [
        build_engine(
            EngineConfig(model=str(folder), dtype="float32", attention_backend=backend, threads=threads, **options),
            lambda stage, fraction: None,
            Watch(backend),
        )
        for backend, threads in (("torch", 2), ("cpu", 1))
    ]
    for name, engine in enumerate([*engines, engines[0]]):
        context = RequestContext(SamplingParams(max_tokens=2, ignore_eos=True), seed=name)
        engine.add(AddRequest(str(name), [1, 2, 3], context))
        while engine.has_work:
            engine.step()
    assert seen == {"torch": {(2, 2)}, "cpu": {(1, 1)}}


@pytest.mark.usefixtures("threads_as_before")
def test_torch_keeps_its_threads_where_there_is_no_engine_after_all(folder: Path) -> None:
    with pytest.raises(MemoryLimitError):
        build(folder, threads=2, kv_memory="900TiB")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads(folder: Path, threads: int) -> None:
    with pytest.raises(UsageError, match=f"threads must be at least 1, not {threads}"):
        build(folder, threads=threads)
