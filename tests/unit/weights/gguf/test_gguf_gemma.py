"""Checks of Gemma 3n and 4 metadata. tests/parity compares valid files with llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.gguf.config import translate

LAYERS = 3
COMMON: Mapping[str, Any] = {
    "context_length": 64,
    "embedding_length": 8,
    "block_count": LAYERS,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 4,
    "attention.sliding_window_pattern": [True, False, False],
    "attention.shared_kv_layers": 1,
    "embedding_length_per_layer_input": 4,
    "rope.freq_base": 1e6,
}
OWN: Mapping[str, Mapping[str, Any]] = {
    "gemma3n": {"altup.num_inputs": 4, "altup.active_idx": 0},
    "gemma4": {"attention.key_length_swa": 4, "attention.value_length_swa": 4, "rope.dimension_count": 8},
}
NAMES = frozenset(f"blk.{i}.attn_{part}.weight" for i in range(LAYERS) for part in "qkv")


def config(arch: str, *, names: frozenset[str] = NAMES, **values: Any) -> dict[str, Any]:
    pairs = {**COMMON, **OWN[arch], **{key.replace("__", "."): value for key, value in values.items()}}
    own = {f"{arch}.{key}": value for key, value in pairs.items() if value is not None}
    return translate({"general.architecture": arch, "tokenizer.ggml.tokens": ["a", "b"], **own}, names)


def test_deviations_are_shares() -> None:
    found = config("gemma3n", activation_sparsity_scale=[1.6448535919189453, float("-inf"), 0.0])
    assert found["activation_sparsity_pattern"] == pytest.approx([0.95, 0.0, 0.5])
    assert (found["final_logit_softcapping"], found["laurel_rank"]) == (30.0, 64), "what older files do not say"
    assert found["intermediate_size"] == [16] * LAYERS
    assert config("gemma3n", attention__shared_kv_layers=2.0)["num_kv_shared_layers"] == 2, "some files have fractions"


def test_heads_by_the_kind_of_a_layer() -> None:
    found = config("gemma4", attention__head_count_kv=[2, 1, 1])
    assert found["head_dim"] == 4
    assert found["per_layer_config"] == {
        "0": {"head_dim": 4, "num_key_value_heads": 2},
        "1": {"head_dim": 8, "num_key_value_heads": 1},
        "2": {"head_dim": 8, "num_key_value_heads": 1},
    }
    assert not found["attention_k_eq_v"]
    assert config("gemma4", names=NAMES - {"blk.1.attn_v.weight", "blk.2.attn_v.weight"})["attention_k_eq_v"]
    assert config("gemma4", feed_forward_length=[16, 16, 32])["use_double_wide_mlp"]
    assert not config("gemma4", feed_forward_length=[16, 16, 16])["use_double_wide_mlp"]


@pytest.mark.parametrize(
    ("arch", "values", "message"),
    [
        (
            "gemma3n",
            {"activation_sparsity_scale": [1]},
            r"activation_sparsity_scale is \[1\]; it must be a list of float",
        ),
        ("gemma3n", {"activation_sparsity_scale": 0.5}, "activation_sparsity_scale is 0.5; it must be a list"),
        ("gemma3n", {"altup__num_inputs": None}, r"no key gemma3n\.altup\.num_inputs"),
        (
            "gemma3n",
            {"attention__sliding_window_pattern": 5},
            "sliding_window_pattern is 5; it must have a boolean for each",
        ),
        (
            "gemma3n",
            {"attention__sliding_window_pattern": [True]},
            r"pattern is \[True\]; it must have a boolean for each",
        ),
        ("gemma4", {"attention__shared_kv_layers": 4}, r"shared_kv_layers is 4\.0, but must be"),
        ("gemma4", {"attention__shared_kv_layers": 0.5}, r"shared_kv_layers is 0\.5, but must be"),
        ("gemma4", {"attention__shared_kv_layers": float("inf")}, "shared_kv_layers is inf, but must be"),
        ("gemma4", {"attention__shared_kv_layers": float("nan")}, "shared_kv_layers is nan, but must be"),
        ("gemma4", {"attention__key_length_swa": None}, r"no key gemma4\.attention\.key_length_swa"),
        (
            "gemma4",
            {"rope__dimension_count_swa": 2},
            "rope.dimension_count_swa is 2, which is not supported for heads of 4 dimensions",
        ),
        (
            "gemma4",
            {"feed_forward_length": [16, 32, 32]},
            r"feed_forward_length is \[16, 32, 32\], which is not supported",
        ),
        ("gemma4", {"names": NAMES - {"blk.0.attn_v.weight"}}, r"layers \[0\] have no value weights"),
        ("gemma4", {"something": 1}, r"gemma4\.something = 1 is not supported"),
    ],
)
def test_what_cannot_be_is_named(arch: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        config(arch, **values)
