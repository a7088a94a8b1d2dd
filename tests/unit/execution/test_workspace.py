"""What the largest step takes is predicted as it is measured."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.forward import backend_of
from model_support.tiny import make_model, save_model

from offline.memory import forget_peak, peak_bytes
from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.execution import workspace as module
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.block_tables import BlockTables
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.execution.workspace import LargestStep, on_a_cpu
from plimsoll_runtime.models.composing import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.weights.sources import resolve

CPU = torch.device("cpu")
ROWS, SEQUENCES = 2048, 200
SIZES = {"hidden_size": 768, "intermediate_size": 1536, "num_hidden_layers": 2, "vocab_size": 30000}


LATENT = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 256,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}

STREAMS = {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 1000, "intermediate_size": [1536, 1536]}
OWN: Mapping[str, Mapping[str, Any]] = {"YoutuConfig": LATENT, "Gemma3nTextConfig": STREAMS}


@pytest.mark.parametrize(
    ("kind", "backend", "least", "most"),
    [
        ("LlamaConfig", "cpu", 0.93, 1.1),
        ("LlamaConfig", "torch", 0.8, 2.0),
        ("YoutuConfig", "torch", 0.8, 2.0),
        ("Gemma3nTextConfig", "torch", 0.8, 2.0),
    ],
)
def test_as_measured(kind: str, backend: str, least: float, most: float, tmp_path: Path) -> None:
    """Activations and logits of one step, resident: 60 MB and more."""
    if backend == "cpu" and kernels(torch.float32) is None:
        pytest.skip("this processor has no kernels for float32, or they were not built")
    save_model(make_model(kind, {**SIZES, **OWN.get(kind, {})}), tmp_path)
    files = resolve(str(tmp_path))
    program, chosen = program_of(describe(files.config)), backend_of(files, torch.float32, backend)
    decoder = load_decoder(files, program, torch.float32, device=CPU, fused=chosen.fused)
    step = LargestStep(ROWS, SEQUENCES, ROWS)
    predicted = on_a_cpu(decoder, step) - module._choosing(program.facts, step)
    cache = KvCache(program.facts.attention, ROWS // 16 + 2, 16, torch.float32, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()
    attention = chosen(cache)
    cells = torch.arange(16, 16 + ROWS)
    batch = AttentionBatch([ROWS], [ROWS], BlockTables.of([list(range(1, ROWS // 16 + 1))]), cells)
    ctypes.CDLL(None).malloc_trim(0)  # what other tests have given back would hide what is taken here
    before = _resident()
    forget_peak()
    with torch.inference_mode():
        hidden = decoder(torch.zeros(ROWS, dtype=torch.int64), torch.arange(ROWS), attention.begin(batch))
        decoder.logits(hidden[:1].repeat(step.logits_rows(program.facts.vocab_size), 1))
    assert least < predicted / (peak_bytes() - before) < most


def test_logits_of_prompts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMPT_LOGITS", 1000)
    assert LargestStep(rows=2048, sequences=4, longest=10).logits_rows(vocab_size=10) == 100
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=10) == 50
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=5000) == 4


def _resident() -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(row.split()[1]) for row in rows if row.startswith("VmRSS"))
