"""Probing of models with their own caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from model_support.tiny import COMMON, make_model
from transformers import BloomConfig, BloomForCausalLM, BloomModel, GptOssConfig, GptOssForCausalLM, GptOssModel

from plimsoll_runtime.models.transformers_code.cache_calls import Calling, Findings, Stepper, Takes
from plimsoll_runtime.models.transformers_code.cache_probe import WINDOW, narrowed, probe
from plimsoll_runtime.models.transformers_code.cache_tensors import tensors_of
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError, class_of
from plimsoll_runtime.models.transformers_code.outline import ANY_LENGTH, transformers_outline

TOKENS = 150
BLOOM = BloomConfig(vocab_size=20, hidden_size=48, n_layer=2, n_head=4)


def found_of(name: str, **values: Any) -> Findings:
    kind, config = class_of(getattr(transformers, name)(**{**COMMON, **values}).to_dict())
    return probe(kind, config)


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("name", "values", "calling", "takes", "stacks"),
    [
        ("BloomConfig", {}, Calling("transformer", "past_key_values", positions=False), Takes.ANY, True),
        ("XGLMConfig", {"d_model": 48}, Calling("model", "past_key_values", positions=True), Takes.ANY, True),
        ("MambaConfig", {}, Calling("backbone", "cache_params", positions=False), Takes.FIRST, True),
        ("RwkvConfig", {}, Calling("rwkv", "state", positions=False), Takes.ANY, False),
        (
            "RecurrentGemmaConfig",
            {"lru_width": 48, "head_dim": 12, "num_key_value_heads": 1},
            Calling("model", None, positions=True),
            Takes.ANY,
            True,
        ),
        ("OpenAIGPTConfig", {"n_embd": 48, "n_head": 4}, Calling("transformer", None, positions=True), Takes.ANY, True),
    ],
)
def test_how_a_class_is_called(
    name: str, values: Mapping[str, Any], calling: Calling, takes: Takes, stacks: bool
) -> None:
    """RWKV's token shift mixes rows of a batch; GPT-1 has no cache; RecurrentGemma keeps states in its modules."""
    found = found_of(name, **values)
    assert (found.calling, found.takes, found.axes is not None) == (calling, takes, stacks)
    assert (found.vocab_size, found.hidden_size) == (20, 48)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BloomConfig", {}),
        ("MambaConfig", {}),
        ("RwkvConfig", {}),
        ("GptOssConfig", {"head_dim": 16, "sliding_window": 32, "num_local_experts": 4}),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    ],
)
def test_what_caches_take_is_what_they_take(name: str, values: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Compares with a longer sequence than was probed: not less memory, and at most the extra space for growing."""
    found = found_of(name, **values)
    model = make_model(name, values).to(dtype)
    stepper, cache = Stepper(model, found.calling), None
    with torch.inference_mode():
        for start in range(TOKENS):
            _, cache = stepper.step(torch.tensor([[3]]), start, cache)
    real = sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(cache).values()}.values()
    )
    [kept] = [each for each in found.kept if each.element_bytes == dtype.itemsize]
    assert real <= kept.sequence + TOKENS * kept.token <= 2 * real + (TOKENS * kept.token if "Oss" in name else 0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BertGenerationConfig", {}),
        ("CpmAntConfig", {"num_attention_heads": 4, "dim_head": 12, "dim_ff": 64}),
    ],
)
def test_who_sees_later_tokens_is_refused(name: str, values: Mapping[str, Any]) -> None:
    with pytest.raises(UnservedError, match="lets tokens attend to later ones"):
        found_of(name, **values)


class Forgetful(BloomModel):  # type: ignore[no-untyped-call]
    """A model whose cache is wrong."""

    def forward(self, *args: Any, past_key_values: Any = None, use_cache: Any = None, **kwargs: Any) -> Any:
        found = super().forward(*args, past_key_values=past_key_values, use_cache=use_cache, **kwargs)
        if found.past_key_values is not None:
            found.past_key_values.layers[0].values *= 0.5
        return found


class Sharing(BloomModel):  # type: ignore[no-untyped-call]
    """A model whose rows affect each other."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state + 0.01 * found.last_hidden_state.mean(0)
        return found


class Fixed(BloomModel):  # type: ignore[no-untyped-call]
    """A model that ignores its tokens."""

    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return super().forward(torch.full_like(input_ids, 5), **kwargs)


class ForgetfulForCausalLM(BloomForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = Forgetful(config)


class SharingForCausalLM(BloomForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = Sharing(config)


class FixedForCausalLM(BloomForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = Fixed(config)


class Rescaled(BloomForCausalLM):  # type: ignore[no-untyped-call]
    """A model whose logits depend on the number of rows."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.logits = found.logits - found.logits.mean(1, keepdim=True)
        return found


class Shortsighted(GptOssModel):  # type: ignore[no-untyped-call]
    """A model whose cache is wrong once the window is full."""

    def forward(self, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        found = super().forward(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and past_key_values.get_seq_length() > 2 * WINDOW:
            found.past_key_values.layers[0].values *= 0.5
        return found


class ShortsightedForCausalLM(GptOssForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = Shortsighted(config)


def test_windows_are_made_so_small_that_what_is_beyond_them_shows() -> None:
    config = GptOssConfig(**COMMON, head_dim=16, sliding_window=4096, num_local_experts=4, num_experts_per_tok=2)
    assert narrowed(config).sliding_window == WINDOW
    assert config.sliding_window == 4096
    assert probe(GptOssForCausalLM, config).calling.cache == "past_key_values"
    assert probe(ShortsightedForCausalLM, config).calling.cache is None


def test_who_does_not_take_another_window_is_asked_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Any) -> Any:
        config = narrowed(config)
        config.hidden_size = "many"
        return config

    monkeypatch.setattr("plimsoll_runtime.models.transformers_code.cache_probe.narrowed", broken)
    assert probe(BloomForCausalLM, BLOOM).calling.cache == "past_key_values"


class Dicing(BloomModel):  # type: ignore[no-untyped-call]
    """A model with random results."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state * torch.rand(1)
        return found


class DicingForCausalLM(BloomForCausalLM):  # type: ignore[no-untyped-call]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = Dicing(config)


def test_a_cache_that_gives_other_numbers_is_not_used() -> None:
    assert probe(ForgetfulForCausalLM, BLOOM).calling.cache is None
    assert probe(BloomForCausalLM, BLOOM).calling.cache == "past_key_values"


def test_rows_that_take_from_one_another_are_not_stacked() -> None:
    assert probe(SharingForCausalLM, BLOOM).axes is None
    assert probe(BloomForCausalLM, BLOOM).axes is not None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FixedForCausalLM, "returns the same result for any token"),
        (DicingForCausalLM, "returns different hidden states for the same tokens in two passes"),
        (Rescaled, "computes logits that depend"),
    ],
)
def test_who_cannot_be_believed(kind: type[Any], reason: str) -> None:
    with pytest.raises(UnservedError, match=reason):
        probe(kind, BLOOM)


def test_a_class_without_positions_has_no_longest_sequence_of_its_own() -> None:
    config = {**BLOOM.to_dict(), "architectures": ["BloomForCausalLM"]}
    assert transformers_outline(config).facts.max_positions == ANY_LENGTH
    assert transformers_outline({**config, "seq_length": 2048}).facts.max_positions == 2048


def test_weights_that_others_may_read_are_not_scaled_where_they_lie() -> None:
    _, config = class_of(transformers.RwkvConfig(**COMMON).to_dict())
    assert config.rescale_every == 0
