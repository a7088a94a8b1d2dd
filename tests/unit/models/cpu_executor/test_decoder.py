"""The CPU executor gives the same bits for any chunks and number of threads, and torch's results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernel_support.instructions import Build
from model_support.forward import backend_of, hidden_states
from model_support.tiny import make_model, prompts, save_model

from plimsoll_kernels.cpu.threads import share, thread_count
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
[PROMPT] = prompts((300,))
CONFIGS = {
    "llama": ("LlamaConfig", {"head_dim": 32}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 16}),
    "odd": ("LlamaConfig", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}),
}
"""The widths of "odd" (48 attended values, hidden, inner) are no multiples of a tile's step."""


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose weights are bfloat16, so that every dtype loads the same numbers."""
    saved = tmp_path_factory.mktemp(request.param)
    save_model(make_model(*CONFIGS[request.param]).to(torch.bfloat16), saved)
    return saved


def load(folder: Path, dtype: torch.dtype, backend: str) -> tuple[Decoder, type[AttentionBackend]]:
    files = resolve(str(folder))
    chosen = backend_of(files, dtype, backend)
    return load_decoder(files, program_of(describe(files.config)), dtype, device=CPU, fused=chosen.fused), chosen


@pytest.mark.matrix(5)
@pytest.mark.parametrize("chunk", [1, 7, 16, 129])
def test_chunks_change_nothing(folder: Path, build: Build, chunk: int) -> None:
    loaded = load(folder, build.dtype, "cpu")
    assert torch.equal(hidden_states(*loaded, PROMPT, chunk), hidden_states(*loaded, PROMPT, 300))


@pytest.mark.matrix(9)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(folder: Path, build: Build, threads: int) -> None:
    loaded = load(folder, build.dtype, "cpu")
    before = thread_count()
    whole = hidden_states(*loaded, PROMPT, 300)
    try:
        share(threads)
        assert torch.equal(hidden_states(*loaded, PROMPT, 64), whole)
    finally:
        share(before)


@pytest.mark.matrix(8)
def test_nothing_is_read_of_what_an_earlier_step_left(folder: Path, build: Build) -> None:
    decoder, backend = load(folder, build.dtype, "cpu")
    first = hidden_states(decoder, backend, PROMPT, 300)
    assert isinstance(decoder, CpuExecutor)
    with torch.inference_mode():
        decoder._decoder._workspace._memory.fill_(0xFF)  # NaN in every element type
    assert torch.equal(hidden_states(decoder, backend, PROMPT, 300), first)


@pytest.mark.matrix(3)
def test_as_torch_computes_it(folder: Path, float32_build: Build) -> None:
    ours, theirs = (hidden_states(*load(folder, torch.float32, b), PROMPT, 100) for b in ("cpu", "torch"))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.matrix(2)
def test_bfloat16_is_nearer_the_truth_than_torch(folder: Path, bfloat16_build: Build) -> None:
    truth = hidden_states(*load(folder, torch.float32, "torch"), PROMPT, 100)
    ours, theirs = (hidden_states(*load(folder, torch.bfloat16, b), PROMPT, 100).float() for b in ("cpu", "torch"))
    errors = [(x - truth).square().mean().sqrt() for x in (ours, theirs)]
    assert errors[0] < errors[1]


def test_another_backends_step_is_refused(folder: Path) -> None:
    decoder, _ = load(folder, torch.float32, "cpu")
    _, other = load(folder, torch.float32, "torch")
    with pytest.raises(TypeError, match="the CPU executor needs attention of the backend cpu"):
        hidden_states(decoder, other, PROMPT, 100)
