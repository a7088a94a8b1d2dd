"""Private memory during and after loading, compared with the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.registry.registry import describe

MOST = 1.15
Stored = Callable[[str, tuple[int, ...]], dict[str, Tensor]]
"""Returns the stored tensors of a checkpoint for a name and shape."""
CONFIG: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 12,
    "num_experts_per_tok": 2,
}
TIED: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "vocab_size": 12288,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
MEASURE = """
import sys, threading
from pathlib import Path
import torch
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.layers.linear import Linear
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, held())

torch.set_num_threads(1)
files = resolve(sys.argv[1])
program = program_of(describe(files.config))
Linear(torch.rand(64, 64))(torch.rand(2, 64))  # what the library makes for itself
before = peak = held()
done = threading.Event()
thread = threading.Thread(target=watch)
thread.start()
decoder = load_decoder(files, program, torch.float32, device=torch.device("cpu"), fused=sys.argv[2] == "cpu")
done.set()
thread.join()
print(max(peak, held()) - before, decoder.weight_bytes)
"""


def in_bfloat16(name: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=torch.bfloat16)}


def in_fp8(name: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return blocks of 128 x 128, as in DeepSeek V3."""
    if not name.endswith(("w1.weight", "w2.weight", "w3.weight")):
        return in_bfloat16(name, shape)
    scales = torch.ones([-(-size // 128) for size in shape])
    return {name: torch.zeros(shape, dtype=torch.float8_e4m3fn), f"{name}_scale_inv": scales}


def in_mxfp4(name: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return MXFP4 components, as in gpt-oss."""
    if not name.endswith("_proj"):
        return in_bfloat16(name, shape)
    exponents = torch.full((*shape[:-1], shape[-1] // 32), 127, dtype=torch.uint8)
    return {f"{name}_blocks": torch.zeros((*exponents.shape, 16), dtype=torch.uint8), f"{name}_scales": exponents}


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what memory is whose")
@pytest.mark.parametrize(
    ("architecture", "backend", "said", "stored"),
    [
        *(
            (name, backend, {}, in_bfloat16)
            for name in ("MixtralForCausalLM", "GraniteMoeForCausalLM")
            for backend in ("cpu", "torch")
        ),
        ("MixtralForCausalLM", "cpu", FP8, in_fp8),
        ("GptOssForCausalLM", "torch", MXFP4, in_mxfp4),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (value if isinstance(value, str) else ""),
)
def test_a_mixture_is_never_there_twice(
    tmp_path: Path, architecture: str, backend: str, said: dict[str, Any], stored: Stored
) -> None:
    """Float32 runs convert, join and pack each matrix: 3 x 72 MiB of experts."""
    assert_never_twice(tmp_path, {**CONFIG, **said, "architectures": [architecture]}, backend, stored)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what memory is whose")
def test_a_table_that_is_the_output_layer_too_is_never_there_twice(tmp_path: Path) -> None:
    """The table takes 48 MiB when read, and again when packed; 7 layers of 28 MiB follow."""
    assert_never_twice(tmp_path, TIED, "cpu", in_bfloat16)


def assert_never_twice(tmp_path: Path, config: dict[str, Any], backend: str, stored: Stored) -> None:
    """Load a model in float32 in another process, whose peak must be little more than the kept memory."""
    if backend == "cpu" and kernels(torch.float32) is None:
        pytest.skip("the kernels were not built")
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = program_of(describe(config)).stored_shapes()
    tensors = {key: tensor for name, shape in shapes.items() for key, tensor in stored(name, shape).items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    command = [sys.executable, "-c", MEASURE, str(tmp_path), backend]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    taken, kept = map(int, found.stdout.split())
    assert kept > 200 * 2**20
    assert kept < taken < MOST * kept
