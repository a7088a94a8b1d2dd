"""Engines that wake from an image: same outputs as after a load, the granted memory, and refusal of wrong images."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from model_support.tiny import make_model, prompts, save_model

from plimsoll_kernels.cpu import library
from plimsoll_kernels.cpu.library import VARIABLE, runnable
from plimsoll_kernels.cpu.threads import share
from plimsoll_runtime.driver.build import engine as build_module
from plimsoll_runtime.driver.build import loader, memory_plan
from plimsoll_runtime.driver.build import model_facts as model_module
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.driver.build.loader import wake
from plimsoll_runtime.driver.build.model_facts import facts_of, from_files
from plimsoll_runtime.driver.estimate import measure
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext, RequestOutput
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import MemoryLimitError, ModelError, UsageError
from plimsoll_runtime.execution.attention import selection
from plimsoll_runtime.execution.memory.system import footprint
from plimsoll_runtime.weights.image import Image, ImageFacts
from plimsoll_runtime.weights.sources.resolve import resolve

pytestmark = pytest.mark.usefixtures("kernels_as_before")

FAMILIES = {
    "llama": ("LlamaConfig", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"head_dim": 16, "sliding_window": 16}),
    "qwen2": ("Qwen2Config", {"hidden_size": 64}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 16}),
}
CPU = torch.device("cpu")
BACKENDS = ("cpu", "torch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(make_model(*FAMILIES["llama"]), tmp_path)
    return tmp_path


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        **{"model": str(folder), "dtype": "float32", "threads": 1, "kv_memory": "1MiB", "max_sequences": 4, **options}
    )


def build(config: EngineConfig, image: Image | None = None, grant: Grant | None = None) -> EngineCore:
    return build_engine(config, lambda stage, fraction: None, image=image, grant=grant)


def answers(core: EngineCore) -> list[RequestOutput]:
    """Return the outputs of a few prompts with all log probabilities, without the times in their marks."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=20, prompt_logprobs=20)
    for number, prompt in enumerate(prompts((3, 40, 70))):
        core.add(AddRequest(str(number), prompt, RequestContext(params, seed=0)))
    found: list[RequestOutput] = []
    while core.has_work:
        found += (msgspec.structs.replace(output, marks=[]) for output in core.step().outputs)
    return sorted(found, key=lambda output: output.request_id)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_the_same_to_the_last_bit(
    family: str, backend: str, dtype: str, tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "cpu" and not runnable():
        pytest.skip("no CPU kernels here")
    save_model(make_model(*FAMILIES[family]), tmp_path)
    config = config_of(tmp_path, attention_backend=backend, dtype=dtype)
    expected = answers(build(config))
    loaded = build(config, image)
    assert answers(loaded) == expected
    shutil.rmtree(tmp_path)
    monkeypatch.delattr(loader, "load_decoder")
    monkeypatch.delattr(build_module, "speed")
    monkeypatch.delattr(loader, "log_findings")
    woken = build(config, image)
    assert answers(woken) == expected
    assert msgspec.structs.replace(woken.info, overhead_bytes=loaded.info.overhead_bytes) == loaded.info
    assert woken.info.image_bytes == image.size


def test_it_takes_what_was_granted_whatever_is_free(
    folder: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loader, memory_plan):
        monkeypatch.setattr(module, "free_memory", lambda device: pytest.fail("it measures free memory"))
    config = config_of(folder, kv_memory=None, max_model_len=100)
    needs = measure(config)
    grant = Grant(
        weights=max(needs.image, image.size) + needs.private,
        workspace=needs.workspace,
        kv=10 * needs.block_bytes + 7,
        kv_least=needs.kv_least,
        kv_most=12 * needs.block_bytes,
    )
    for _ in ("loaded", "woken"):
        info = build(config, image, grant).info
        assert (info.num_blocks, info.kv_bytes) == (10, 10 * needs.block_bytes)
        assert (info.least_blocks, info.most_blocks, info.max_model_len) == (8, 12, 100)
        assert info.workspace_bytes == needs.workspace
    assert info.image_bytes <= needs.image
    assert info.weight_bytes == info.image_bytes + needs.private


@pytest.mark.usefixtures("threads_as_before")
def test_what_it_takes_is_measured_with_the_threads_that_it_will_have(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed of attention backends depends on the threads, so a choice for another number would not help the
    engine.
    """
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(cache))
    monkeypatch.setattr(selection, "CPU_SECONDS", 60.0)
    share(3)
    config = config_of(folder)
    measure(config)
    [remembered] = (cache / selection.FOLDER).iterdir()
    assert json.loads(remembered.read_text())["key"]["threads"] == config.threads == 1
    build(config)
    assert list((cache / selection.FOLDER).iterdir()) == [remembered]


def test_without_a_length_the_longest_sequence_is_what_the_least_holds(folder: Path, image: Image) -> None:
    config = config_of(folder, kv_memory=None)
    needs = measure(config, kv=measure(config).block_bytes * 5)
    assert (needs.max_model_len, needs.kv_least) == (64, 5 * needs.block_bytes)
    grant = Grant(weights=image.size, workspace=needs.workspace, kv=9 * needs.block_bytes, kv_least=needs.kv_least)
    assert build(config, image, grant).info.max_model_len == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": 1000}, r"the weights need \d+ bytes, but 1000 were granted; grant \d+ more"),
        ({"workspace": 1000}, r"the largest step needs a workspace of \d+ bytes, but 1000 were granted"),
        ({"kv": 5000, "kv_least": 0}, "the 5000 bytes that are always granted to the KV cache hold 0 tokens, but a"),
    ],
)
def test_a_grant_that_is_not_enough_is_refused_with_the_numbers(
    folder: Path, image: Image, changes: dict[str, int], message: str
) -> None:
    config = config_of(folder, kv_memory=None, max_model_len=100)
    needs = measure(config)
    grant = Grant(weights=image.size, workspace=needs.workspace, kv=needs.kv_least, kv_least=needs.kv_least)
    with pytest.raises(MemoryLimitError, match=message):
        build(config, image, msgspec.structs.replace(grant, **changes))


def test_options_that_a_grant_does_not_count_are_refused(folder: Path, tmp_path: Path) -> None:
    grant = Grant(weights=2**30, workspace=2**30, kv=2**20)
    for options, error, message in (
        ({"kv_disk": str(tmp_path), "kv_disk_size": "1MiB"}, UsageError, "take memory outside of the grant"),
        ({"kv_memory": "40%"}, UsageError, "is a share of free memory, but this engine gets granted memory"),
        ({"kv_memory": "2MiB"}, MemoryLimitError, "2097152 bytes, but the grant guarantees only 1048576"),
    ):
        with pytest.raises(error, match=message):
            build(config_of(folder, **options), grant=grant)


@pytest.mark.parametrize("numbers", [{"kv": -1}, {"kv": 10, "kv_least": 11}, {"kv": 10, "kv_most": 9}])
def test_a_grant_that_contradicts_itself(numbers: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="grant"):
        Grant(weights=1, workspace=1, **numbers)


def facts(folder: Path, **changes: Any) -> ImageFacts:
    config = config_of(folder)
    files = resolve(config.model)
    model = from_files(config, files, CPU)
    return msgspec.structs.replace(facts_of(config, model, files), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "other"}, r"its model is \('other', None\), but \('/.*', None\) is requested"),
        ({"revision": "main"}, "its model is"),
        ({"device": "cuda"}, "its kind of device is cuda, but cpu is requested"),
        ({"dtype": "bfloat16"}, "its dtype is bfloat16, but float32 is requested"),
        ({"code": "0.0.1"}, r"its version of plimsoll is 0\.0\.1"),
        ({"config": b"x"}, "its config is"),
        ({"library": "old.so"}, "it is packed for the kernels of old.so, but this process has libplimsoll_cpu"),
        ({"instructions": "neon"}, "packed for neon, but this processor and system run"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    if not runnable():
        pytest.skip("no CPU kernels here")
    with pytest.raises(ModelError, match=f"{message}.*; drop it and load the model again"):
        model_module.from_image(config_of(folder), facts(folder, **changes), CPU)


def test_an_image_of_files_that_have_changed_is_refused(folder: Path, image: Image) -> None:
    config = config_of(folder)
    build(config, image)
    save_model(make_model("LlamaConfig", {"head_dim": 16}, seed=1), folder)
    with pytest.raises(
        ModelError, match=r"model\.safetensors has changed since the image was made; drop it and load the model again"
    ):
        build(config, image)


def test_an_image_for_another_backend_is_refused(folder: Path, image: Image) -> None:
    if not runnable():
        pytest.skip("no CPU kernels here")
    build(config_of(folder, attention_backend="cpu"), image)
    with pytest.raises(ModelError, match="it is for the attention backend cpu, but torch is requested"):
        build(config_of(folder, attention_backend="torch"), image)
    with pytest.raises(
        ModelError,
        match="the attention backend cpu, which it was made for, supports only these block sizes: multiples of 16",
    ):
        build(config_of(folder, block_size=8), image)


def test_it_computes_with_the_instructions_that_its_weights_are_packed_for(
    folder: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx512" not in runnable():
        pytest.skip("this processor has one set of instructions only")
    monkeypatch.setenv(VARIABLE, "avx2")
    expected = answers(build(config_of(folder), image))
    monkeypatch.delenv(VARIABLE)
    assert answers(build(config_of(folder), image)) == expected
    found = library.kernels(torch.float32)
    assert found is not None
    assert found.name == b"avx2"


def test_a_load_that_was_broken_off_leaves_an_image_that_can_be_filled(
    folder: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenOffError(Exception):
        pass

    def break_off(stage: str, fraction: float) -> None:
        if fraction > 0.5:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        build_engine(config_of(folder), break_off, image=image)
    assert image.header() is None
    expected = answers(build(config_of(folder)))
    assert answers(build(config_of(folder), image)) == expected
    assert answers(build(config_of(folder), image)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("overlap", [True, False])
def test_its_answers_are_the_same_while_its_cache_changes(
    folder: Path, image: Image, backend: str, overlap: bool
) -> None:
    """The cache gets another size every few steps; blocks in use move, and the results stay equal to the last bit."""
    if backend == "cpu" and not runnable():
        pytest.skip("no CPU kernels here")
    options = {"kv_memory": None, "max_model_len": 120, "attention_backend": backend, "overlap": overlap}
    config = config_of(folder, check_integrity_every=1, max_batch_tokens=32, **options)
    needs = measure(config)
    grant = Grant(
        weights=image.size + needs.private,
        workspace=needs.workspace,
        kv=20 * needs.block_bytes,
        kv_least=needs.kv_least,
        kv_most=40 * needs.block_bytes,
    )
    core = build(config, image, grant)
    expected = answers(core)
    core.reset_prefix_cache()
    sizes = iter([12, 40, 9, 30, 10, 11, 9, 40, 13] * 30)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=20, prompt_logprobs=20)
    for number, prompt in enumerate(prompts((3, 40, 70))):
        core.add(AddRequest(str(number), prompt, RequestContext(params, seed=0)))
    found: list[RequestOutput] = []
    while core.has_work:
        core.resize(next(sizes) * needs.block_bytes)
        for _ in range(3):
            found += core.step().outputs
    told = sorted(found, key=lambda output: output.request_id)
    assert [out.token_ids for out in told] == [out.token_ids for out in expected]
    assert [out.logprobs for out in told] == [out.logprobs for out in expected]


class Registry:
    """Records calls in place of CUDA's runtime."""

    def __init__(self, error: int = 0) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self._error = error

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        self.calls.append(("pin", pointer, size))
        return self._error

    def cudaHostUnregister(self, pointer: int) -> int:
        self.calls.append(("unpin", pointer, 0))
        return 0


def test_a_gpu_copies_from_pages_that_are_pinned_for_as_long(folder: Path, image: Image) -> None:
    """The whole image is pinned, from a multiple of 2 MiB on, and only until it is copied."""
    build(config_of(folder, attention_backend="torch"), image)
    header = image.header()
    assert header is not None
    model = model_module.from_image(config_of(folder, attention_backend="torch"), header.facts, CPU)
    registry = Registry()
    decoder = wake(model, image, header, registry)
    (first, pinned_at, size), (last, unpinned_at, _) = registry.calls
    assert (first, last, pinned_at, size) == ("pin", "unpin", unpinned_at, image.size)
    assert pinned_at % 2**21 == 0
    assert decoder.weight_bytes < header.nbytes
    refusing = Registry(error=2)
    with pytest.raises(
        MemoryLimitError, match=r"of host memory for the GPU \(CUDA error 2\); allow more locked memory"
    ):
        wake(model, image, header, refusing)
    assert [name for name, *_ in refusing.calls] == ["pin"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
def test_a_gpu_says_the_same_from_an_image(folder: Path, image: Image) -> None:
    expected = answers(build(config_of(folder)))
    assert answers(build(config_of(folder), image)) == expected
    assert answers(build(config_of(folder), image)) == expected


TAKES = """
import mmap, sys
print("as it was", flush=True)
sys.stdin.readline()
block = mmap.mmap(-1, 2**25, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block.write(b"x" * 2**25)
print("taken", flush=True)
sys.stdin.readline()
"""


def test_memory_by_what_becomes_of_it() -> None:
    """Measured on an idle process."""
    with subprocess.Popen(
        [sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as taking:
        assert taking.stdin is not None
        assert taking.stdout is not None
        found = []
        for said in ("as it was\n", "taken\n"):
            assert taking.stdout.readline() == said
            found.append(footprint(taking.pid))
            taking.stdin.write("go on\n")
            taking.stdin.flush()
        assert taking.wait(120) == 0
    before, after = found
    assert 2**25 <= after.anonymous - before.anonymous < 2**25 + 2**23
    assert after.files > 0
