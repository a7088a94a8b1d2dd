"""The fused decoder: the same bits whatever a prompt's chunks and however many threads, and as torch computes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_support.forward import backend_of, hidden_states
from model_support.tiny import make_model, prompts, save_model

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.weights.sources import resolve

CPU = torch.device("cpu")
[PROMPT] = prompts((300,))
CONFIGS = {
    "llama": ("LlamaConfig", {"head_dim": 32}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 16}),
}


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_model(make_model(*CONFIGS[request.param]), tmp_path)
    return tmp_path


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    if kernels(chosen) is None:
        pytest.skip(f"this processor has no kernels for {chosen}, or they were not built")
    return chosen


def load(folder: Path, dtype: torch.dtype, backend: str) -> tuple[Decoder, type[AttentionBackend]]:
    files = resolve(str(folder))
    chosen = backend_of(files, dtype, backend)
    return load_decoder(files, describe(files.config), dtype, device=CPU, fused=chosen.fused), chosen


@pytest.mark.parametrize("chunk", [1, 7, 16, 129])
def test_chunks_change_nothing(folder: Path, dtype: torch.dtype, chunk: int) -> None:
    loaded = load(folder, dtype, "cpu")
    assert torch.equal(hidden_states(*loaded, PROMPT, chunk), hidden_states(*loaded, PROMPT, 300))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(folder: Path, dtype: torch.dtype, threads: int) -> None:
    loaded = load(folder, dtype, "cpu")
    before = torch.get_num_threads()
    whole = hidden_states(*loaded, PROMPT, 300)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(hidden_states(*loaded, PROMPT, 64), whole)
    finally:
        torch.set_num_threads(before)


def test_as_torch_computes_it(folder: Path) -> None:
    ours, theirs = (hidden_states(*load(folder, torch.float32, b), PROMPT, 100) for b in ("cpu", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_another_backends_step_is_refused(folder: Path) -> None:
    decoder, _ = load(folder, torch.float32, "cpu")
    _, other = load(folder, torch.float32, "torch")
    with pytest.raises(TypeError, match="a fused decoder needs a step of the backend cpu"):
        hidden_states(decoder, other, PROMPT, 100)
