"""Models, texts and options with which groups of ranks are compared with one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_support.cases import Case
from model_support.tiny import prompts

from plimsoll_runtime import SamplingParams
from plimsoll_runtime.offline.llm import Generation

TOLERANCE = 1e-3
PROMPTS = prompts((1, 17, 40, 120))
"""Longer than each window (16) below."""
ON_A_CPU: Mapping[str, Any] = {"device": "cpu"}
"""On a machine with a GPU too: each rank would need one of its own."""
GPT: Mapping[str, Any] = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}
WINDOW: Mapping[str, Any] = {"sliding_window": 16, "head_dim": 16, "num_hidden_layers": 4}

CASES: Mapping[str, Case] = {
    "llama": Case("LlamaConfig", {"mlp_bias": True, "attention_bias": True}),
    "qwen2-14-heads": Case("Qwen2Config", {"hidden_size": 112, "num_attention_heads": 14}),
    "qwen3": Case("Qwen3Config", {"head_dim": 16}),
    "gemma3-one-key-head": Case("Gemma3TextConfig", {**WINDOW, "num_hidden_layers": 6, "num_key_value_heads": 1}),
    "gpt2-transposed": Case("GPT2Config", GPT),
    "gpt-neox-interleaved": Case("GPTNeoXConfig", {"hidden_size": 64}),
    "mixtral": Case("MixtralConfig", {"num_local_experts": 6, "num_experts_per_tok": 3}),
    "gpt-oss": Case("GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


TOKENS = 40
TEXTS = prompts((1, 15, 16, 17, 33, 70, 120), seed=3)
OPTIONS: Mapping[str, Any] = {
    **ON_A_CPU,
    "dtype": "float32",
    "threads": 1,
    "kv_memory": "4MiB",
    "max_model_len": 256,
    "check_integrity_every": 1,
}
CHUNKS = 24
"""Tokens of a step: the longest prompt needs several."""
FEW_BLOCKS: Mapping[str, Any] = {"block_size": 8, "kv_memory": "256KiB", "max_model_len": 176}
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
SEEDED = [
    SamplingParams(temperature=0.9, seed=number, max_tokens=TOKENS, ignore_eos=True, repetition_penalty=penalty)
    for number, penalty in enumerate([1.0, 1.3, 1.0, 1.2, 1.0, 1.0, 1.1])
]
REPORTING = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=3)


def tokens(found: Sequence[Generation]) -> list[list[int]]:
    assert all(each.outputs[0].error is None for each in found)
    return [each.outputs[0].token_ids for each in found]
