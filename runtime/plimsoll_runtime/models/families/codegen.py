"""CodeGen: GPT-J with queries, values and keys in one tensor, in four shards of heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import gptj
from plimsoll_runtime.models.spec.decoder import DecoderSpec

SHARDS = 4
NAMES = replace(gptj.NAMES, query_key_value=("attn.qkv_proj",), shards=SHARDS)


def describe(values: Mapping[str, Any]) -> DecoderSpec:
    """Return the spec of CodeGenForCausalLM."""
    spec = gptj.describe(values)
    heads = spec.attention[0].heads
    if heads % SHARDS:
        raise ModelError(f"config.json: n_head is {heads}; it must be a multiple of {SHARDS}")
    return replace(spec, architecture="CodeGenForCausalLM", names=NAMES)
