"""Text decoders of multimodal models give Transformers' log probabilities without images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.configs import DEEPSEEK, DELTA
from model_support.forward import largest_difference, of_engine, of_transformers
from model_support.tiny import COMMON, VOCAB, make_model, prompts, randomise, save_model
from safetensors.torch import load_file, save_file

PROMPTS = prompts((1, 17, 60))
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 48,
    "deepstack_visual_indexes": [0],
}
GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "original_max_position_embeddings": 24,
    "mscale": 0.7,
    "mscale_all_dim": 1.2,
    "llama_4_scaling_beta": 0.8,
}
MROPE = {"rope_type": "default", "rope_theta": 1e3, "mrope_section": [2, 2, 2]}
GEMMA_VISION = {**VISION, "head_dim": 16, "num_key_value_heads": 2, "patch_size": 4, "position_embedding_size": 8}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA: Mapping[str, Any] = {
    "head_dim": 16,
    "sliding_window": 16,
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
    "vocab_size_per_layer_input": 20,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 1,
    "pad_token_id": 0,
}
CASES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "Gemma3": ("Gemma3Config", {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 16}, VISION),
    "Gemma4": ("Gemma4Config", {**GEMMA, "global_head_dim": 32, "attention_k_eq_v": True}, GEMMA_VISION),
    "Gemma4Unified": (
        "Gemma4UnifiedConfig",
        {**GEMMA, "global_head_dim": 32},
        {"mm_embed_dim": 32, "mm_posemb_size": 8},
    ),
    "Mistral3": ("Mistral3Config", {"model_type": "mistral", "head_dim": 16, "sliding_window": 16}, VISION),
    "Llama4": (
        "Llama4Config",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "intermediate_size_mlp": 56,
            "attention_chunk_size": 16,
            "no_rope_layer_interval": 3,
        },
        {**VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    ),
    "Mistral3-latent": (
        "Mistral3Config",
        {
            "model_type": "mistral4",
            **DEEPSEEK,
            "rope_parameters": GROWING,
        },
        VISION,
    ),
    "Llava": ("LlavaConfig", {"model_type": "llama"}, VISION),
    "Qwen2VL": ("Qwen2VLConfig", {"rope_parameters": MROPE}, QWEN_VISION),
    "Qwen2_5_VL": ("Qwen2_5_VLConfig", {"rope_parameters": MROPE}, QWEN_VISION),
    "Qwen3_5": ("Qwen3_5Config", DELTA, QWEN_VISION),
    "Qwen3VL": ("Qwen3VLConfig", {"head_dim": 12, "rope_parameters": MROPE}, QWEN_VISION),
}


@pytest.mark.matrix(4)
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    import transformers

    kind, text, vision = CASES[name]
    config = getattr(transformers, kind)(text_config={**COMMON, **text}, vision_config=dict(vision))
    model = getattr(transformers, f"{name.partition('-')[0]}ForConditionalGeneration")(config).float()
    randomise(model, config.text_config)
    save_model(model, tmp_path)
    expected = of_transformers(model.eval(), PROMPTS)
    assert largest_difference(of_engine(str(tmp_path), PROMPTS), expected) < 1e-3
    assert torch.isfinite(expected[-1]).all()


def test_logits_of_gemma_3n_equal_those_of_its_text_part_alone(tmp_path: Path) -> None:
    """Names and config are those of the whole model, which Transformers builds only with timm."""
    text = {**GEMMA, "intermediate_size": [80] * 4, "activation_sparsity_pattern": [0.5, 0.0] * 2, "laurel_rank": 8}
    model = make_model("Gemma3nTextConfig", text)
    save_model(model, tmp_path)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole = {f"model.language_{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**whole, "model.embed_vision.embedding.weight": torch.zeros(VOCAB, 4)}, file)
    own = json.loads(config.read_text())
    own = {key: value for key, value in own.items() if key != "architectures"}
    architecture = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    config.write_text(json.dumps({**architecture, "text_config": own, "vision_config": {}, "audio_config": {}}))
    expected = of_transformers(model, PROMPTS)
    assert largest_difference(of_engine(str(tmp_path), PROMPTS), expected) < 1e-3
