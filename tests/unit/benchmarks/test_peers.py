from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from peers import install, places
from peers.gguf_files import FloatType, from_safetensors
from serving.models import Shape
from serving.pool import Pool
from serving.systems import LLAMA_CPP, OPENVINO

SHAPE = Shape("test", vocab=300, hidden=16, intermediate=24, layers=1, heads=2, kv_heads=1, head_dim=8)


def _floats(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIMSOLL_PEERS", str(tmp_path))
    return tmp_path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    config = {
        "model_type": "llama",
        "vocab_size": SHAPE.vocab,
        "max_position_embeddings": 64,
        "hidden_size": SHAPE.hidden,
        "num_hidden_layers": 1,
        "intermediate_size": SHAPE.intermediate,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.kv_heads,
        "rope_parameters": {"rope_theta": 10000.0},
        "rms_norm_eps": 1e-6,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0"
    # Of a seed: half precision does not hold every bfloat16 near 0.
    random = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    tensors = {
        "model.embed_tokens.weight": random(SHAPE.vocab, SHAPE.hidden),
        "model.norm.weight": random(SHAPE.hidden),
        f"{layer}.self_attn.q_proj.weight": random(16, 16),
        f"{layer}.mlp.down_proj.weight": random(16, 24),
    }
    save_file({name: t.bfloat16() for name, t in tensors.items()}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("form", ["BF16", "F16"])
def test_a_llama_as_gguf_has_the_same_numbers(llama: Path, form: FloatType) -> None:
    source = load_file(llama / "model.safetensors")
    reader = gguf.GGUFReader(from_safetensors(llama, form))
    tensors = {t.name: _floats(t) for t in reader.tensors}

    assert torch.equal(tensors["token_embd.weight"], source["model.embed_tokens.weight"].float())
    assert torch.equal(tensors["blk.0.ffn_down.weight"], source["model.layers.0.mlp.down_proj.weight"].float())
    assert torch.equal(tensors["output_norm.weight"], source["model.norm.weight"].float())


def test_query_rows_of_a_head_go_from_halves_to_pairs(llama: Path) -> None:
    query = load_file(llama / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].float()
    reader = gguf.GGUFReader(from_safetensors(llama, "BF16"))
    (found,) = [t for t in reader.tensors if t.name == "blk.0.attn_q.weight"]

    order = [head + row for head in (0, 8) for row in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert torch.equal(_floats(found), query[order])


def test_a_mixtures_experts_become_one_tensor_in_their_order(llama: Path) -> None:
    """More than ten experts, whose names do not sort by number; heads are not reordered in pairs."""
    config = json.loads((llama / "config.json").read_text())
    mixture = {"num_local_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}
    (llama / "config.json").write_text(json.dumps({**config, **mixture, "model_type": "qwen3_moe"}))
    prefix = "model.layers.0"
    up = torch.randn(12, 8, 16).bfloat16()
    experts = {f"{prefix}.mlp.experts.{number}.up_proj.weight": up[number].clone() for number in range(12)}
    others = {
        f"{prefix}.self_attn.q_proj.weight": torch.randn(16, 16),
        f"{prefix}.mlp.gate.weight": torch.randn(12, 16),
    }
    source = {**experts, **{name: tensor.bfloat16() for name, tensor in others.items()}}
    save_file(source, llama / "model.safetensors")

    reader = gguf.GGUFReader(from_safetensors(llama, "BF16"))

    tensors = {t.name: _floats(t) for t in reader.tensors}
    assert tensors.keys() == {"blk.0.ffn_up_exps.weight", "blk.0.attn_q.weight", "blk.0.ffn_gate_inp.weight"}
    assert torch.equal(tensors["blk.0.ffn_up_exps.weight"], up.float())
    assert torch.equal(tensors["blk.0.attn_q.weight"], source[f"{prefix}.self_attn.q_proj.weight"].float())
    counts = [reader.get_field(f"qwen3moe.{name}") for name in ("expert_count", "expert_used_count")]
    assert [None if field is None else field.contents() for field in counts] == [12, 2]


def test_a_gguf_is_made_once_and_anew_for_newer_weights(llama: Path) -> None:
    target = from_safetensors(llama, "BF16")
    target.write_bytes(b"kept")
    assert from_safetensors(llama, "BF16").read_bytes() == b"kept"

    later = target.stat().st_mtime + 10
    os.utime(llama / "model.safetensors", (later, later))
    assert from_safetensors(llama, "BF16").read_bytes() != b"kept"


def test_peers_that_are_not_installed_are_absent_with_what_to_do(nowhere: Path) -> None:
    absent = Pool(threads=1).absent

    assert absent == {OPENVINO: "not installed: make bench-peers", LLAMA_CPP: "not installed: make bench-peers"}
    assert places.versions() == {}


def test_a_step_that_fails_says_which_with_its_last_words_and_its_log(nowhere: Path) -> None:
    program = "print('compiling'); print('fatal: no header'); raise SystemExit(3)"

    with pytest.raises(
        install.StepFailed, match=r"(?s)building failed with exit status 3.*fatal: no header.*build\.log"
    ):
        install._step("building", [sys.executable, "-c", program], "build")


def test_what_is_installed_is_left_alone(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "venv/lib/python3.11/site-packages/openvino_genai").mkdir(parents=True)
    (nowhere / "venv/.requirements").write_text(install.REQUIREMENTS.read_text())
    (nowhere / "bin").mkdir()
    for name in places.PROGRAMS:
        places.program(name).write_text("")
    places.stamp().write_text(install.LLAMA_CPP_PYTHON)

    def fail(*args: object) -> None:
        raise AssertionError(f"{args} ran")

    monkeypatch.setattr(install, "_step", fail)
    install.install_packages()
    install.build_llama_cpp(jobs=1)
    with pytest.raises(AssertionError, match="ran"):
        install.build_llama_cpp(jobs=1, again=True)
