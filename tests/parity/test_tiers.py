"""Outputs do not depend on cached blocks having been on disk or lost, with a small pool."""

from __future__ import annotations

import errno
import gc
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from model_support.tiny import make_model, prompts, save_model

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.kv.offload.costs import Costs
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder

PREFIX = 96
PROMPTS = prompts((PREFIX + 1,) * 8, seed=3)
"""7 blocks each; the pool holds two of them."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SECONDS = 10.0
BACKENDS = ("auto", "torch")
"""Our kernels if available, with their own layout of blocks, and torch with plain rows."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_model(make_model("LlamaConfig", {"hidden_size": 64}), folder)
    return folder


def load(model: Path, backend: str, disk: Path | None, **options: Any) -> LLM:
    tiers = {} if disk is None else {"kv_disk": str(disk), "kv_disk_size": "4MiB"}
    small = {"kv_memory": "192KiB", "max_model_len": 128, "dtype": "float32", "threads": 1}
    return LLM(str(model), attention_backend=backend, check_integrity_every=1, **{**small, **tiers, **options})


def ask_all(llm: LLM, asked: Sequence[list[int]] = PROMPTS) -> tuple[list[list[int]], list[int]]:
    """Send prompts one after the other. Return the texts and the number of cached tokens of each prompt."""
    texts, found = [], []
    for prompt in asked:
        (result,) = llm.generate([prompt], GREEDY)
        texts.append(result.outputs[0].token_ids)
        found.append(result.cached_tokens)
        settle(llm)
    return texts, found


def settle(llm: LLM) -> None:
    """Wait until the disk's threads are idle."""
    tiers = llm._engine._scheduler._kv.tiers  # type: ignore[union-attr]
    while tiers is not None and tiers.index.in_flight:
        tiers.index.wait(SECONDS)
        tiers.index.poll()


@pytest.fixture(autouse=True)
def what_is_on_the_disk_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the engine read from disk, although recomputing such a small model is faster."""
    monkeypatch.setattr(Costs, "learn_computed", lambda costs, tokens, ns: None)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def expected(model: Path, backend: str) -> list[list[int]]:
    """Return the texts without tiers, with everything computed."""
    llm = load(model, backend, None)
    texts, found = ask_all(llm)
    assert found == [0] * len(PROMPTS)
    assert ask_all(llm) == (texts, found), "the pool is too small to find anything in it"
    return texts


def test_the_disk_brings_every_prefix_back(
    model: Path, backend: str, expected: list[list[int]], tmp_path: Path
) -> None:
    llm = load(model, backend, tmp_path)
    assert ask_all(llm) == (expected, [0] * 8)
    for _ in range(2):
        assert ask_all(llm) == (expected, [PREFIX] * 8)
    assert llm.stats.tiers is not None
    assert llm.stats.tiers.hit_tokens == 2 * 8 * PREFIX
    assert llm.stats.tiers.loaded > 0


def test_requests_that_come_together_find_the_same(
    model: Path, backend: str, expected: list[list[int]], tmp_path: Path
) -> None:
    llm = load(model, backend, tmp_path, max_sequences=3)
    for _ in range(3):
        results = llm.generate([prompt for prompt in PROMPTS for _ in range(2)], GREEDY)
        assert [r.outputs[0].token_ids for r in results] == [text for text in expected for _ in range(2)]
        settle(llm)


def test_another_run_finds_what_this_one_left(
    model: Path, backend: str, expected: list[list[int]], tmp_path: Path
) -> None:
    llm = load(model, backend, tmp_path)
    for _ in range(2):
        ask_all(llm)
    end(llm)
    del llm
    again = load(model, backend, tmp_path)
    texts, found = ask_all(again)
    assert texts == expected
    assert found == [PREFIX] * 8


def test_groups_come_back_together(backend: str, tmp_path: Path) -> None:
    """Restores blocks of windows too, if later tokens read them.

    A prompt takes 7 blocks of three groups. Of 200 blocks, 25 frames are between cache and disk, enough for one prompt.
    """
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    config = {"hidden_size": 64, "head_dim": 16, "sliding_window": 21, "layer_types": layers}
    save_model(make_model("Gemma3TextConfig", config), tmp_path / "model")
    asked = prompts((PREFIX + 1,) * 14, seed=4)
    plain = load(tmp_path / "model", backend, None, kv_memory="800KiB", prefix_caching=False)
    expected, _ = ask_all(plain, asked)
    llm = load(tmp_path / "model", backend, tmp_path / "disk", kv_memory="800KiB")
    assert len(llm.info.groups) == 3
    assert ask_all(llm, asked) == (expected, [0] * 14)
    assert ask_all(llm, asked) == (expected, [PREFIX] * 14)
    assert llm.stats.tiers is not None
    assert llm.stats.tiers.loaded > 0


def test_another_precision_does_not_take_them_for_its_own(model: Path, tmp_path: Path) -> None:
    llm = load(model, "torch", tmp_path)
    ask_all(llm)
    end(llm)
    del llm
    other = load(model, "torch", tmp_path, dtype="bfloat16", kv_memory="96KiB")
    assert ask_all(other)[1] == [0] * 8
    assert len(list(tmp_path.iterdir())) == 1


def end(llm: LLM) -> None:
    """Release the engine; its disk is free once its threads have ended."""
    llm.close()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "kv-disk":
            thread.join(SECONDS)


def rot(folder: Path) -> None:
    for file in folder.glob("*/*.kv"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.write_bytes(data)


def cut(folder: Path) -> None:
    for file in folder.glob("*/*.kv"):
        file.write_bytes(file.read_bytes()[:-100])


def swap(folder: Path) -> None:
    """Swap the contents of files."""
    files = list(folder.glob("*/*.kv"))
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)


def vanish(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("harm", [rot, cut, swap, vanish])
def test_a_disk_that_loses_or_spoils_blocks_changes_no_text(
    model: Path, backend: str, expected: list[list[int]], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    llm = load(model, backend, tmp_path / "kv")
    ask_all(llm)
    for _ in range(2):
        harm(tmp_path / "kv")
        texts, _ = ask_all(llm)
        assert texts == expected
        if harm is vanish:
            break
    assert llm.stats.tiers is not None
    assert llm.stats.tiers.failed > 0


def test_a_full_disk_changes_no_text(
    model: Path, backend: str, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: BlockFolder, name: bytes, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(BlockFolder, "write", full)
    llm = load(model, backend, tmp_path)
    for _ in range(2):
        assert ask_all(llm)[0] == expected
    assert llm.stats.tiers is not None
    assert llm.stats.tiers.disk_blocks == 0
