"""What the largest step takes is predicted as it is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.tiny import make_model, save_model

from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.execution import workspace as module
from plimsoll_runtime.execution.workspace import LargestStep

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
    command = [sys.executable, "-m", "model_support.step_memory", str(tmp_path), backend, str(ROWS), str(SEQUENCES)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert least < float(done.stdout) < most


def test_logits_of_prompts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMPT_LOGITS", 1000)
    assert LargestStep(rows=2048, sequences=4, longest=10).logits_rows(vocab_size=10) == 100
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=10) == 50
    assert LargestStep(rows=50, sequences=4, longest=10).logits_rows(vocab_size=5000) == 4
