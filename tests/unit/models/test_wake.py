"""A decoder that wakes from an image computes the same bits as the one that filled it, and reads no files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.configs import DELTA
from model_support.forward import backend_of, hidden_states
from model_support.images import FACTS
from model_support.tiny import make_model, prompts, save_model

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.load import image_bytes, imagined_decoder, load_decoder, wake_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.image import Image
from plimsoll_runtime.weights.image_arena import FilledArena, FillingArena
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {"head_dim": 16, "tie_word_embeddings": False}),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": 16}),
    "qwen2": ("Qwen2Config", {"hidden_size": 64}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 16}),
    "gpt2": ("GPT2Config", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "neox": ("GPTNeoXConfig", {"hidden_size": 64}),
    "cohere": ("CohereConfig", {"hidden_size": 64, "use_qk_norm": True}),
    "phi3": ("Phi3Config", {"head_dim": 16}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {"hidden_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "granite-moe": ("GraniteMoeConfig", {"hidden_size": 64, "num_local_experts": 4}),
    "ernie-moe": (
        "Ernie4_5_MoeConfig",
        {"hidden_size": 64, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
    ),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "latent": ("YoutuConfig", {"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "v_head_dim": 12}),
    "lfm2": ("Lfm2Config", {"hidden_size": 64, "layer_types": ["conv", "full_attention", "conv"]}),
    "bamba": (
        "BambaConfig",
        {"hidden_size": 64, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "attn_layer_indices": [1]},
    ),
    "qwen3.5": ("Qwen3_5TextConfig", DELTA),
    "jamba": ("JambaConfig", {"hidden_size": 64, "num_experts": 2, "attn_layer_period": 3, "attn_layer_offset": 1}),
    "recurrent-gemma": ("RecurrentGemmaConfig", {"hidden_size": 64, "head_dim": 16, "attention_window_size": 16}),
    "biased": ("LlamaConfig", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
}
[PROMPT] = prompts((40,))


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save_model(make_model(*CONFIGS[request.param]), tmp_path)
    return tmp_path


@pytest.fixture
def image() -> Iterator[Image]:
    made = Image.create(2**24, "m")
    yield made
    made.close()


@pytest.mark.matrix(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_the_same_bits_from_no_file(folder: Path, image: Image, backend: str, dtype: torch.dtype) -> None:
    files = resolve(str(folder))
    program = program_of(describe(files.config))
    if backend == "cpu" and (reason := why_not_fused(program)):
        pytest.skip(f"the CPU kernels {reason}")
    chosen = backend_of(files, dtype, backend)
    predicted = image_bytes(program, dtype, fused=chosen.fused)
    arena = FillingArena(image)
    plain = load_decoder(files, program, dtype, device=CPU, fused=chosen.fused)
    loaded = load_decoder(files, program, dtype, device=CPU, fused=chosen.fused, places=arena)
    header = arena.finish(FACTS)
    assert header.nbytes <= predicted <= header.nbytes + 2**17
    shutil.rmtree(folder)
    woken = wake_decoder(program, dtype, FilledArena(image, header), device=CPU, fused=chosen.fused)
    assert plain.weight_bytes == loaded.weight_bytes == woken.weight_bytes
    expected, *others = (hidden_states(each, chosen, PROMPT, 7) for each in (plain, loaded, woken))
    logits = plain.logits(expected).clone()
    for decoder, hidden in zip((loaded, woken), others, strict=True):
        assert torch.equal(hidden, expected)
        assert torch.equal(decoder.logits(hidden), logits)


@pytest.mark.matrix(12)
def test_a_decoder_without_weights_takes_the_same_places(folder: Path, image: Image) -> None:
    files = resolve(str(folder))
    program = program_of(describe(files.config))
    if reason := why_not_fused(program):
        pytest.skip(f"the CPU kernels {reason}")
    arena = FillingArena(image)
    loaded = load_decoder(files, program, torch.float32, device=CPU, fused=True, places=arena)
    assert isinstance(loaded, CpuExecutor)
    imagined, counted = imagined_decoder(program, torch.float32)
    assert counted.count == len(arena.finish(FACTS).places)
    assert imagined.weight_bytes == loaded.weight_bytes
    assert imagined.step_bytes(64, 8, 100) == loaded.step_bytes(64, 8, 100)


def test_another_models_image_is_refused(tmp_path: Path, image: Image) -> None:
    save_model(make_model("LlamaConfig", {"head_dim": 16}), tmp_path)
    files = resolve(str(tmp_path))
    program = program_of(describe(files.config))
    arena = FillingArena(image)
    load_decoder(files, program, torch.float32, device=CPU, places=arena)
    header = arena.finish(FACTS)
    for change in ({"num_hidden_layers": 4}, {"num_hidden_layers": 2}, {"hidden_size": 64}):
        other = program_of(describe({**files.config, **change}))
        with pytest.raises(ModelError, match="load the model again"):
            wake_decoder(other, torch.float32, FilledArena(image, header), device=CPU, fused=False)
