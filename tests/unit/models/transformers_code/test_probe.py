"""Probing of Transformers code: supported models, and models that each have one fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from model_support.tiny import COMMON
from torch import Tensor
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, LlamaModel

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError, class_of
from plimsoll_runtime.models.transformers_code.outline import transformers_outline
from plimsoll_runtime.models.transformers_code.probe import probe

CONFIG = LlamaConfig(**COMMON)


def config_of(name: str, **values: Any) -> dict[str, Any]:
    """Return a config.json."""
    made: dict[str, Any] = getattr(transformers, name)(**{**COMMON, **values}).to_dict()
    return made


def test_what_is_found_of_a_plain_model() -> None:
    found = probe(LlamaForCausalLM, CONFIG)
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=12, scale=12**-0.5)
    assert found.attention == (shape,) * 3
    assert (found.vocab_size, found.hidden_size, found.base) == (20, 48, "model")
    assert found.widest == 80


@pytest.mark.long
def test_large_models_have_no_memory_while_they_are_asked() -> None:
    """Probes 70 billion parameters in a process with a hundredth of their memory."""
    config = LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8
    )
    config.max_position_embeddings = 8192
    outline = transformers_outline({**config.to_dict(), "architectures": ["LlamaForCausalLM"]})
    assert outline.weight_bytes(torch.bfloat16) == pytest.approx(2 * 69e9, rel=0.01)
    assert set(outline.facts.attention) == {AttentionShape(64, 8, 128, 128**-0.5)}
    assert (outline.widest, outline.facts.vocab_size) == (28672, 32000), "logits are no part of a row's work"


def test_windows_scales_and_caps_are_found() -> None:
    config = config_of("Gemma2Config", head_dim=16, sliding_window=16, query_pre_attn_scalar=64, num_hidden_layers=2)
    outline = transformers_outline(config)
    plain = AttentionShape(4, 2, 16, 64**-0.5, softcap=50.0)
    assert outline.facts.attention == (AttentionShape(4, 2, 16, 64**-0.5, window=16, softcap=50.0), plain)
    assert outline.facts.max_positions == 512
    assert str(outline).splitlines()[1] == f"  layers 0-0: {outline.facts.attention[0]}"


class CountsPositions(LlamaModel):  # type: ignore[no-untyped-call]
    def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class MixesRows(LlamaModel):  # type: ignore[no-untyped-call]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state + 0.01 * found.last_hidden_state.roll(1, dims=1)
        return found


class KnowsNoToken(LlamaModel):  # type: ignore[no-untyped-call]
    def forward(self, input_ids: Tensor, **kwargs: Any) -> Any:
        return super().forward(input_ids=torch.zeros_like(input_ids), **kwargs)


class Llama(LlamaForCausalLM):  # type: ignore[no-untyped-call]
    """A Llama with another base model."""

    base: type[LlamaModel] = LlamaModel

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.base(config)


class RowsMatter(Llama):  # type: ignore[no-untyped-call]
    """A model whose logits depend on earlier calls."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.logits = found.logits / (1 + self.model.calls)
        self.model.calls += 1
        return found


class Counted(LlamaModel):  # type: ignore[no-untyped-call]
    calls = 0


class SeesMore(Llama):  # type: ignore[no-untyped-call]
    """A model that changes the inputs of its base model."""

    def forward(self, *args: Any, position_ids: Tensor, **kwargs: Any) -> Any:
        return super().forward(*args, position_ids=position_ids + 1, **kwargs)


@pytest.mark.parametrize(
    ("kind", "base", "reason"),
    [
        (Llama, CountsPositions, "counts positions itself"),
        (Llama, MixesRows, "mixes rows outside attention"),
        (Llama, KnowsNoToken, "returns the same result for any token"),
        (RowsMatter, Counted, "computes logits that depend on several rows"),
        (SeesMore, LlamaModel, "computes more from tokens than its base model does"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_that_misbehaves(
    kind: type[Llama], base: type[LlamaModel], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Llama, "base", base)
    with pytest.raises(UnservedError, match=reason):
        probe(kind, CONFIG)


def changed_call(**values: Any) -> Any:
    """Patch Llama's attention so that it calls our function with other arguments."""
    interface: Any = AttentionInterface
    real = interface().get_interface

    def get_interface(name: str, default: Any) -> Any:
        found = real(name, default)
        return lambda *args, **kwargs: found(*args, **{**kwargs, **values})

    return get_interface


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"s_aux": torch.zeros(4)}, r"calls attention with unsupported arguments \(s_aux\)"),
        ({"is_causal": False}, "attends to later tokens"),
        ({"sliding_window": 8}, "passes a window of 8 tokens to attention but masks one of None"),
    ],
    ids=["sinks", "not-causal", "window"],
)
def test_a_call_that_asks_for_more(values: Mapping[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionInterface, "get_interface", staticmethod(changed_call(**values)))
    with pytest.raises(UnservedError, match=reason):
        probe(LlamaForCausalLM, CONFIG)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("BertConfig", {}, "BertLMHeadModel is not supported: it is an encoder"),
        ("BartConfig", {}, "it is an encoder-decoder"),
        ("T5Config", {}, "it is an encoder-decoder"),
        ("WhisperConfig", {}, "it is a speech encoder-decoder"),
        ("Gemma3Config", {}, "it is a model of images and text"),
        ("ViTConfig", {}, "vit as a causal language model"),
        ("Gemma4AssistantConfig", {}, "it is a drafter"),
        ("BertGenerationConfig", {}, "with its own caches, it lets tokens attend to later ones"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith("Config") else "",
)
def test_who_is_refused_by_name(name: str, values: Mapping[str, Any], reason: str) -> None:
    kinds = {
        "Gemma3Config": "gemma3",
        "Gemma4AssistantConfig": "gemma4_assistant",
        "WhisperConfig": "whisper",
        "ViTConfig": "vit",
    }
    config = {"model_type": kinds[name]} if name in kinds else config_of(name, **values)
    with pytest.raises(ModelError, match=reason):
        transformers_outline({**config, "architectures": ["BertLMHeadModel"]} if name == "BertConfig" else config)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("GPTJConfig", {"rotary_dim": 8}, "does not attend through Transformers' attention interface"),
        ("MptConfig", {"max_seq_len": 64}, "does not attend through"),
        ("GptOssConfig", {}, r"calls attention with unsupported arguments \(s_aux\)"),
        ("Llama4TextConfig", {"attention_chunk_size": 16}, "uses a chunked mask"),
        ("DogeConfig", {}, "creates its own masks"),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}, "mixes rows outside attention"),
        ("MambaConfig", {}, "does not attend through"),
    ],
)
def test_who_does_not_get_our_attention_has_a_cache_of_its_own(
    name: str, values: Mapping[str, Any], reason: str
) -> None:
    config = config_of(name, **values)
    kind, theirs = class_of(config)
    with pytest.raises(UnservedError, match=reason):
        probe(kind, theirs)
    outline = transformers_outline(config)
    assert outline.own is not None
    assert not outline.facts.keeps_only_blocks
    assert "with its own caches" in str(outline)


def test_who_is_unknown_to_everybody() -> None:
    with pytest.raises(
        ModelError, match=r"NewForCausalLM is not supported: neither Plimsoll nor Transformers .* supports"
    ):
        transformers_outline({"architectures": ["NewForCausalLM"], "model_type": "brand_new"})


def test_another_class_than_the_one_that_generates_text() -> None:
    config = {**config_of("LlamaConfig"), "architectures": ["LlamaForSequenceClassification"]}
    with pytest.raises(ModelError, match="text generation class for llama is LlamaForCausalLM"):
        transformers_outline(config)


def test_a_config_that_transformers_does_not_take() -> None:
    with pytest.raises(ModelError, match=r"Transformers rejects its config: .*hidden_size"):
        transformers_outline({**config_of("LlamaConfig"), "hidden_size": "many"})


def test_code_of_the_model_itself_is_never_run(tmp_path: Any) -> None:
    config = {**config_of("LlamaConfig"), "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.M"}}
    assert transformers_outline(config).facts.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rope_that_changes_with_length_ends_where_it_would_change(kind: str) -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, **factors}
    assert transformers_outline(config_of("LlamaConfig", rope_parameters=rope)).facts.max_positions == 64
