"""Engines of pooling models: their results, their info, and waking from an image."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_support.pooled import DECODERS, ENCODERS, LONGEST, Kind, add_modules, build, save

from plimsoll_runtime.driver.build import loader
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.driver.estimate import measure
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import MemoryLimitError, ModelError, UsageError
from plimsoll_runtime.weights.image import Image

pytestmark = pytest.mark.usefixtures("kernels_as_before")

PROMPTS = [[1, 5, 6, 2], list(range(3, 20)) * 4, [7]]
ONCE = SamplingParams(max_tokens=1, temperature=0.0)
IDENTITY = "torch.nn.modules.linear.Identity"


def config_of(folder: Path, **options: Any) -> EngineConfig:
    fixed = {"model": str(folder), "dtype": "float32", "threads": 1, "max_sequences": 4, "check_integrity_every": 1}
    return EngineConfig(**{**fixed, **options})


def made(config: EngineConfig, image: Image | None = None, grant: Grant | None = None) -> EngineCore:
    return build_engine(config, lambda stage, fraction: None, image=image, grant=grant)


def vectors(core: EngineCore) -> dict[str, bytes | None]:
    for number, prompt in enumerate(PROMPTS):
        core.add(AddRequest(str(number), prompt, RequestContext(ONCE, seed=0, second_text=2)))
    found: dict[str, bytes | None] = {}
    while core.has_work:
        found |= {output.request_id: output.vector for output in core.step().outputs}
    assert None not in found.values()
    return found


@pytest.mark.parametrize("kind", [ENCODERS[0], ENCODERS[-1], DECODERS[0]], ids=str)
def test_it_wakes_and_says_the_same_to_the_last_bit(
    kind: Kind, tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(build(kind), tmp_path)
    add_modules(tmp_path, kind, 48, dense=[(20, IDENTITY)])
    config = config_of(tmp_path, kv_memory="1MiB")
    expected = vectors(made(config))
    loaded = made(config, image)
    assert vectors(loaded) == expected
    shutil.rmtree(tmp_path)
    monkeypatch.delattr(loader, "load_decoder")
    woken = made(config, image)
    assert vectors(woken) == expected
    assert msgspec.structs.replace(woken.info, overhead_bytes=loaded.info.overhead_bytes) == loaded.info
    assert woken.info.pooling is not None
    assert (woken.info.pooling.size, woken.info.pooling.prompts) == (20, {"query": "a b ", "document": "c "})


def test_tokens_that_judge_are_in_the_image(tmp_path: Path, image: Image) -> None:
    save(build(DECODERS[0], "AutoModelForCausalLM"), tmp_path)
    config = config_of(tmp_path, kv_memory="1MiB", task="score")
    expected = vectors(made(config, image))
    shutil.rmtree(tmp_path)
    assert vectors(made(config, image)) == expected
    with pytest.raises(ModelError, match="its task is score, but embed is requested; drop it and load"):
        made(replace(config, task="embed"), image)


@pytest.mark.parametrize("kind", [ENCODERS[0], DECODERS[0]], ids=str)
def test_what_is_measured_is_enough(kind: Kind, tmp_path: Path, image: Image) -> None:
    save(build(kind), tmp_path)
    config = config_of(tmp_path, max_model_len=100)
    needs = measure(config)
    grant = Grant(
        weights=max(needs.image, image.size) + needs.private,
        workspace=needs.workspace,
        kv=needs.kv_least,
        kv_least=needs.kv_least,
        kv_most=needs.kv_most,
    )
    for _ in ("loaded", "woken"):
        core = made(config, image, grant)
        assert (core.info.workspace_bytes, core.info.max_model_len) == (needs.workspace, 100)
        assert (core.info.kv_bytes > 0) == (kind in DECODERS)
        vectors(core)
    less = msgspec.structs.replace(grant, workspace=needs.workspace - 1)
    with pytest.raises(MemoryLimitError, match="needs a workspace"):
        made(config, image, less)


def test_a_step_holds_the_longest_prompt_whatever_is_asked_for(tmp_path: Path) -> None:
    save(build(ENCODERS[0]), tmp_path)
    few, many = (measure(config_of(tmp_path, max_batch_tokens=n)).workspace for n in (1, 600))
    assert measure(config_of(tmp_path, max_batch_tokens=512)).workspace == few < many
    core = made(config_of(tmp_path, max_batch_tokens=1))
    core.add(AddRequest("a", [5] * 512, RequestContext(ONCE, seed=0)))
    [output] = core.step().outputs
    assert output.vector is not None
    with pytest.raises(UsageError, match="has 513 tokens, but at most 512 are allowed"):
        core.add(AddRequest("a", [5] * 513, RequestContext(ONCE, seed=0)))


def test_options_that_an_encoder_cannot_have_are_refused(tmp_path: Path) -> None:
    save(build(ENCODERS[0]), tmp_path)
    for options, message in (
        ({"max_model_len": 513}, "exceeds the model's limit of 512 tokens"),
        ({"kv_disk": str(tmp_path), "kv_disk_size": "1MiB"}, "a model that has bidirectional attention"),
        ({"model_impl": "transformers"}, "--model-impl transformers supports only generation"),
        ({"task": "generate"}, "BertModel cannot generate"),
    ):
        with pytest.raises(UsageError, match=message):
            made(config_of(tmp_path, **options))


def test_lengths_of_the_files_bound_it(tmp_path: Path) -> None:
    save(build(ENCODERS[0]), tmp_path)
    add_modules(tmp_path, ENCODERS[0], 48)
    assert made(config_of(tmp_path)).info.max_model_len == LONGEST


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    save(build(ENCODERS[0]), tmp_path)
    add_modules(tmp_path, ENCODERS[0], 48, dense=[(20, IDENTITY)])
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the weights lack 2_Dense.linear.weight, 2_Dense.linear.bias"):
        made(config_of(tmp_path))
