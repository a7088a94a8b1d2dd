"""Damaged files give a ModelError or a working model, never a crash."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from model_support.gguf_files import write_gguf
from model_support.quantised import FORMS, quantise
from model_support.tiny import make_model, save_model

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

COUNT = 200
Damage = Callable[[random.Random, bytes], bytes]


def cut(draw: random.Random, whole: bytes) -> bytes:
    return whole[: draw.randrange(len(whole))]


def flipped(draw: random.Random, whole: bytes) -> bytes:
    """Change some bytes at the beginning, where headers are."""
    changed = bytearray(whole)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(min(len(whole), 4096))] = draw.randrange(256)
    return bytes(changed)


def doubled(draw: random.Random, whole: bytes) -> bytes:
    """Repeat a piece of the beginning."""
    start = draw.randrange(min(len(whole), 2048))
    piece = whole[start : start + draw.randint(1, 64)]
    return whole[:start] + piece + whole[start:]


def without(draw: random.Random, whole: bytes) -> bytes:
    start = draw.randrange(min(len(whole), 2048))
    return whole[:start] + whole[start + draw.randint(1, 64) :]


DAMAGES: tuple[Damage, ...] = (cut, flipped, doubled, without)


def load(model: str) -> bool:
    """Return whether the model loads; otherwise it must be rejected with a message."""
    try:
        files = resolve(model)
        load_decoder(files, program_of(describe(files.config)), torch.float32, device=torch.device("cpu"))
    except PlimsollError:
        return False
    return True


@pytest.mark.matrix(3)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize(("file", "form"), [
    ("model.safetensors", None), ("config.json", None), ("model.gguf", None),
    ("model.safetensors", "fp8-blocks"), ("config.json", "compressed-groups"),
])  # fmt: skip
def test_damaged_files(file: str, form: str | None, damage: Damage, tmp_path: Path) -> None:
    model = make_model("Qwen2Config", {"num_hidden_layers": 1})
    if file == "model.gguf":
        write_gguf(model, tmp_path / file, Kind.F32)
    else:
        save_model(model, tmp_path)
    if form is not None:
        quantise(tmp_path, FORMS[form], tmp_path / "plain")
    source = str(tmp_path / file if file == "model.gguf" else tmp_path)
    assert load(source)
    whole, draw = (tmp_path / file).read_bytes(), random.Random(0)
    refused = 0
    for _ in range(COUNT // len(DAMAGES)):
        (tmp_path / file).write_bytes(damage(draw, whole))
        refused += not load(source)
    assert refused > 0


def mutated(draw: random.Random, config: dict[str, object]) -> dict[str, object]:
    key = draw.choice(sorted(config))
    values: list[object] = [None, -1, 0, 2**70, 1e308, float("nan"), "", "x" * 999, [], [[]], {}, {"a": {}}, True, 0.5]
    return {**config, key: draw.choice(values)}


@pytest.mark.long
def test_fields_of_a_config_that_hold_anything(tmp_path: Path) -> None:
    save_model(make_model("Gemma3TextConfig", {"num_hidden_layers": 2, "head_dim": 16}), tmp_path)
    path, draw = tmp_path / "config.json", random.Random(1)
    config = json.loads(path.read_text())
    refused = 0
    for _ in range(COUNT):
        path.write_text(json.dumps(mutated(draw, config)))
        refused += not load(str(tmp_path))
    assert refused > COUNT // 4
