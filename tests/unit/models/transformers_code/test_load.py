"""Loading and waking decoders on Transformers code accounts for every tensor."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.forward import hidden_states
from model_support.images import FACTS
from model_support.tiny import edit_config, make_model, prompts, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.models.load import image_bytes, load_decoder, wake_decoder
from plimsoll_runtime.models.transformers_code.decoder import TransformersDecoder
from plimsoll_runtime.models.transformers_code.model_classes import UnservedError
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline, transformers_outline
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image import Image
from plimsoll_runtime.weights.image_arena import FilledArena, FillingArena
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
CONFIGS = {
    "apertus": ("ApertusConfig", {}),
    "tied": ("CohereConfig", {}),
    "experts": ("Glm4MoeConfig", {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}),
    "positions": ("OPTConfig", {"word_embed_proj_dim": 48, "pad_token_id": 1}),
    "buffers": ("JetMoeConfig", {"kv_channels": 16, "num_local_experts": 4}),
}
"""Glm4Moe keeps a tensor in float32 in any run."""
[PROMPT] = prompts((40,))
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""Relative to the largest number: torch's products depend on the memory alignment of a matrix."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(make_model("StableLmConfig", {"partial_rotary_factor": 0.5}), tmp_path)
    return tmp_path


@pytest.fixture
def image() -> Iterator[Image]:
    made = Image.create(2**24, "m")
    yield made
    made.close()


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[ModelFiles, TransformersOutline, Any]:
    files = resolve(str(folder))
    outline = transformers_outline(files.config)
    return files, outline, load_decoder(files, outline, dtype, device=CPU)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_from_no_file(name: str, dtype: torch.dtype, image: Image, tmp_path: Path) -> None:
    save_model(make_model(*CONFIGS[name]), tmp_path)
    files, outline, plain = loaded(tmp_path, dtype)
    arena = FillingArena(image)
    filled = load_decoder(files, outline, dtype, device=CPU, places=arena)
    header = arena.finish(FACTS)
    assert header.nbytes <= image_bytes(outline, dtype, fused=False) <= header.nbytes + 2**17
    shutil.rmtree(tmp_path)
    woken = wake_decoder(outline, dtype, FilledArena(image, header), device=CPU, fused=False)
    decoders = (plain, filled, woken)
    assert {each.weight_bytes for each in decoders} == {outline.weight_bytes(dtype)}
    with torch.inference_mode():
        expected, *others = (hidden_states(each, GatheredBackend, PROMPT, 7) for each in decoders)
        logits = plain.logits(expected)
        assert logits.dtype == torch.float32
        for decoder, hidden in zip(decoders[1:], others, strict=True):
            assert _apart(hidden, expected) < CLOSE[dtype]
            assert _apart(decoder.logits(hidden), logits) < CLOSE[dtype]


def test_no_weight_is_the_mapped_file(folder: Path) -> None:
    """If memory is short, each step would read the file from disk again."""
    _, _, decoder = loaded(folder)
    assert decoder.weight_bytes
    assert str(folder) not in Path("/proc/self/maps").read_text()


def test_weights_are_told_by_their_dtype() -> None:
    config = make_model(*CONFIGS["experts"]).config
    outline = transformers_outline(config.to_dict())
    kept = sum(4 * torch.Size(t.shape).numel() for t in outline.tensors if t.dtype is torch.float32)
    assert kept > 0
    assert outline.weight_bytes(torch.float32) - kept == 2 * (outline.weight_bytes(torch.bfloat16) - kept)


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max() / other.float().abs().max())


def dropped(tensors: dict[str, Any]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def added(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.extra"] = torch.zeros(3)


def cut(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dropped, r"the weights lack model\.layers\.1\.mlp\.up_proj\.weight; "),
        (added, r"the weights have unexpected tensors: model\.layers\.1\.mlp\.extra; "),
        (cut, r"the weights have a wrong shape: model\.norm\.weight \[7\] instead of \[48\]; "),
    ],
    ids=["missing", "unexpected", "cut"],
)
def test_other_tensors_are_refused_by_name(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=f"StableLmForCausalLM: {message}"):
        loaded(folder)


def test_a_file_that_is_cut_short_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        loaded(folder)


def test_another_models_image_is_refused(folder: Path, image: Image) -> None:
    files, outline, _ = loaded(folder)
    arena = FillingArena(image)
    load_decoder(files, outline, torch.float32, device=CPU, places=arena)
    header = arena.finish(FACTS)
    for layers in (2, 4):
        other = transformers_outline({**files.config, "num_hidden_layers": layers})
        with pytest.raises(ModelError, match="load the model again"):
            wake_decoder(other, torch.float32, FilledArena(image, header), device=CPU, fused=False)


def test_a_gguf_file_is_refused(folder: Path) -> None:
    files, outline, _ = loaded(folder)
    with pytest.raises(ModelError, match="supports only safetensors"):
        load_decoder(replace(files, format="gguf"), outline, torch.float32, device=CPU)


def test_a_model_that_attends_otherwise_than_it_did_when_asked(folder: Path) -> None:
    _, outline, decoder = loaded(folder)
    shapes = outline.facts.attention
    for attention, message in (
        (shapes[:2], r"calls attention in layer 2 with"),
        ((*shapes, shapes[0]), r"called attention 3 times in a step, but 4 times when probed"),
        ((shapes[0], replace(shapes[1], scale=1.0), shapes[2]), r"calls attention in layer 1 with .*scale=0\.28"),
    ):
        changed = replace(outline, facts=replace(outline.facts, attention=attention))
        other = TransformersDecoder(changed, decoder._halves._model, torch.float32)
        with pytest.raises(UnservedError, match=message), torch.inference_mode():
            other(torch.arange(3), torch.arange(3), lambda layer, query, key, value, sinks=None: query)


def test_two_decoders_do_not_meet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each calls its own attention, independent of the order of creation."""
    other = tmp_path_factory.mktemp("other")
    save_model(make_model("StableLmConfig", {"num_hidden_layers": 2, "partial_rotary_factor": 0.5}), other)
    edit_config(other)
    decoders = [loaded(each)[2] for each in (folder, other)]
    called: list[tuple[int, int]] = []
    for number in (0, 1, 0):
        with torch.inference_mode():
            decoders[number](
                torch.arange(3),
                torch.arange(3),
                lambda layer, query, key, value, number=number: called.append((number, layer)) or query,  # type: ignore[func-returns-value]
            )
    assert called == [*((0, i) for i in range(3)), (1, 0), (1, 1), *((0, i) for i in range(3))]
