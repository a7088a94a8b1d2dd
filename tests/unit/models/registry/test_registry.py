"""Third parties add architectures by entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import llama
from plimsoll_runtime.models.registry import registry
from plimsoll_runtime.models.spec.decoder import DecoderSpec

CONFIG: Mapping[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def describe_basalt(config: Mapping[str, Any]) -> DecoderSpec:
    return llama.describe({**config, "num_hidden_layers": 3})


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("BasaltForCausalLM", "basalt", registry.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda self: describe_basalt)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point] if "plimsoll" in group else []))


def test_a_plugin_describes_its_architecture(plugin: None) -> None:
    assert registry.describe({**CONFIG, "architectures": ["BasaltForCausalLM"]}).num_layers == 3
    assert registry.describe({**CONFIG, "architectures": ["LlamaForCausalLM"]}).num_layers == 1


def test_known_architectures_are_listed_with_those_of_plugins(plugin: None) -> None:
    with pytest.raises(
        ModelError, match=r"supported are ArceeForCausalLM, BambaForCausalLM, BasaltFor.*Cohere2For.*, Starcoder2ForC"
    ):
        registry.describe({**CONFIG, "architectures": ["T5EncoderModel"]})
