"""`plimsoll models`: architectures, programs and memory, computed from a config alone."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from plimsoll_runtime.cli.main import main
from plimsoll_runtime.driver import estimate as fit_module
from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.registry.tasks import TOLD
from plimsoll_runtime.weights.sources.resolve import resolve

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
}


SMALL: dict[str, Any] = {"dtype": "bfloat16", "max_batch_tokens": 1, "max_sequences": 1}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model with zeros as weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_zeros(tmp_path, program_of(describe(CONFIG)))
    return str(tmp_path)


def save_zeros(folder: Path, program: Program) -> None:
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in program.stored_shapes().items()}
    save_file(tensors, folder / "model.safetensors")


def test_show_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").touch()
    assert main(["models", "show", str(tmp_path)]) == 0
    assert main(["models", "fit", str(tmp_path)]) != 0
    assert "model.safetensors is not a safetensors file" in capsys.readouterr().err


def test_families_are_listed_with_their_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["ARCHITECTURE", "MODEL", "TYPE", "GGUF"]
    assert ["Gemma3ForCausalLM", "gemma3_text", "gemma3"] in rows
    assert ["OPTForCausalLM", "opt", "-"] in rows
    assert ["ModernBertModel", "modernbert", "-"] in rows


def test_layers_that_are_alike_are_shown_once(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", folder]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "x = embed(model.embed_tokens.weight, scale=8)"
    assert [line for line in lines if line.startswith("layers")] == ["layers 0-4, 6:", "layers 5:"]
    assert out.count("layer={}") == 2
    sliding, full = out.split("layers 5:")
    assert "window=16" in sliding
    assert "window" not in full
    assert "\nlogits = logits(hidden, model.embed_tokens.weight, head=(tied=True))\n" in out


def test_all_layers(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "--all", folder]) == 0
    out = capsys.readouterr().out
    assert all(f"attend(heads, layer={number}," in out for number in range(7))


def test_what_fits(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A token has 7 layers of one key and one value of 32 numbers of 2 bytes."""
    assert main(["models", "fit", folder, "--memory", "1GiB", "--max-batch-tokens", "64"]) == 0
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    parameters = sum(prod(shape) for shape in program_of(describe(CONFIG)).stored_shapes().values())
    assert rows["files"].split() == ["files", f"{2 * parameters / 2**30:.2f}", "GiB", "bfloat16"]
    assert f"{7 * 2 * 32 * 2 / 1024:.1f} KiB" in rows["KV cache, per token"]
    assert rows["KV cache, per sequence"].endswith(
        "of 4096 tokens, the maximum length; 6 of 7 layers keep its last tokens"
    )
    assert rows["longest sequence"].split()[2] == "4096"
    sequences, left = rows["longest sequences at once"].split()[4], float(rows["longest sequence"].split()[7])
    assert left <= 1
    # Blocks of 16 tokens: the full layer keeps 256, the others 15 tokens before four blocks that are computed at once.
    blocks = int(sequences) * (256 + 6 * 6)
    assert abs(blocks * 16 * 2 * 32 * 2 / 2**30 - left) < 0.01


def test_graphs_of_steps_are_memory_that_a_gpus_engine_needs(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "fit", folder, "--memory", "500MiB"]) == 0
    assert "graphs" not in capsys.readouterr().out
    plain = fit_module.fit
    monkeypatch.setattr(fit_module, "fit", lambda *given: replace(plain(*given), graphs=2**29))
    assert main(["models", "fit", folder, "--memory", "500MiB"]) == 1
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if "graphs" in line] == [
        ["CUDA", "graphs", "0.50", "GiB", "at", "most", "(--graph-memory)"]
    ]
    assert main(["models", "fit", folder, "--memory", "1012MiB"]) == 0


def test_a_ranks_program_and_memory(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", folder, "--tensor-parallel", "2"]) == 0
    out = capsys.readouterr().out
    assert "added = reduce(added, ranks=2, in_kernels=True)" in out
    assert "heads=2, kv_heads=1" in out
    assert "each step is one call of Plimsoll's kernels" in out
    assert main(["models", "fit", folder, "--tensor-parallel", "5"]) == 2
    assert "use at most 4" in capsys.readouterr().err


def test_the_smallest_group_that_fits(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank of two lacks a half of the layers' matrices; the embedding is whole."""
    options = ["models", "fit", folder, "--max-batch-tokens", "1", "--max-sequences", "1"]
    needed = [
        fit_module.fit(resolve(folder), EngineConfig(model=folder, **SMALL, tensor_parallel=ranks)) for ranks in (1, 2)
    ]
    whole, half = (found.beside_cache + found.least_cache for found in needed)
    assert half < whole
    assert main([*options, "--memory", str((whole + half) // 2)]) == 1
    assert "it fits with --tensor-parallel 2: 2 devices with" in capsys.readouterr().out
    assert main([*options, "--memory", str(half // 2)]) == 1
    assert "it fits" not in capsys.readouterr().out


def test_what_does_not_fit(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fit", folder, "--memory", "1MiB"]) == 1
    assert "the model does not fit: it needs 0.0" in capsys.readouterr().out


def test_an_unknown_architecture_is_refused_with_those_that_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["T5EncoderModel"]}))
    (tmp_path / "model.safetensors").touch()
    assert main(["models", "show", str(tmp_path)]) != 0
    assert "T5EncoderModel is not supported; supported are ArceeForCausalLM" in capsys.readouterr().err


def test_a_model_that_generates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"type_vocab_size": 2, "max_position_embeddings": 512, "num_key_value_heads": None, "head_dim": None}
    kind = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "num_labels": 3}
    config = {**CONFIG, **said, **kind}
    (tmp_path / "config.json").write_text(json.dumps(config))
    program = outline_of({**config, TOLD: "classify"})
    assert isinstance(program, Program)
    save_zeros(tmp_path, program)
    assert main(["models", "show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-5:-2] == [
        "pooled = first(x)",
        "pooled = project(pooled, bert.pooler.dense.weight, bert.pooler.dense.bias, activation=tanh)",
        "pooled = project(pooled, classifier.weight, classifier.bias)",
    ]
    assert main(["models", "fit", "--max-batch-tokens", "1", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "at most, with 512 tokens of 128 sequences" in out
    assert "KV cache" not in out
