"""Backends' capabilities match the documentation, and every field of a shape is a feature."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch

from plimsoll_runtime.execution.attention import machine
from plimsoll_runtime.execution.attention.backends.bidirectional import BidirectionalBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import (
    ANY,
    FEATURES,
    Capabilities,
    Numbers,
    Target,
    dtypes_text,
    features_of,
    numbers_text,
)
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

DOCUMENT = Path(__file__).parents[4] / "docs" / "concepts" / "attention.md"
CPU = torch.device("cpu")


def table(first_column: str) -> dict[str, list[str]]:
    """Return the rows of the table with this first heading, by their first cell."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {row[0].strip("`"): row[1:] for row in (rows[0], *rows[2:])}


def numbers(stated: Numbers) -> str:
    return "any" if stated == ANY else numbers_text(stated)


def limits(backend: type[AttentionBackend]) -> list[str]:
    able = backend.capabilities
    return [
        ", ".join(able.devices),
        numbers(able.compute_capability),
        dtypes_text(*able.dtypes),
        numbers(able.head_dims),
        numbers(able.block_sizes),
        ", ".join(f"`{need}`" for need in able.needs) or "-",
    ]


def test_the_documented_limits_are_those_of_the_records() -> None:
    found = table("name")
    del found["name"]
    expected = {name: limits(backend) for name, backend in BACKENDS.items()}
    assert {name: row[1:] for name, row in found.items()} == expected


def test_the_documented_features_are_those_of_the_records() -> None:
    found = table("feature")
    assert found.pop("feature") == [f"`{name}`" for name in BACKENDS]
    assert found == {
        text: ["yes" if feature in backend.capabilities.features else "-" for backend in BACKENDS.values()]
        for feature, text in FEATURES.items()
    }


def test_what_is_stated_has_a_name() -> None:
    for capabilities in (*(backend.capabilities for backend in BACKENDS.values()), BidirectionalBackend.capabilities):
        assert FEATURES.keys() >= set(capabilities.features)
    assert {field.name for field in fields(AttentionShape) if field.default is not MISSING} <= FEATURES.keys()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (AttentionShape(4, 2, 8, 1.0), set()),
        (AttentionShape(4, 2, 8, 1.0, alibi=Alibi((1.0,) * 4, coarse=True)), {"alibi", "rounded_alibi"}),
        (AttentionShape(4, 2, 8, 1.0, latent=True), {"latent", "latent_heads"}),
        (AttentionShape(4, 1, 8, 1.0, latent=True, window=9), {"latent", "latent_masked", "window"}),
    ],
)
def test_features_of_a_shape(shape: AttentionShape, expected: set[str]) -> None:
    assert features_of(shape) == expected


def reasons(able: Capabilities) -> Sequence[str]:
    shapes = [AttentionShape(4, 2, 24, 1.0, window=9), AttentionShape(4, 2, 40, 1.0, sinks=True)]
    return list(able._refusals(Target(CPU, torch.float32, shapes, 16)))


def test_a_refusal_says_what_is_supported_and_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons that users cannot change come first; checks that run code come last."""
    monkeypatch.setattr(torch, "__version__", "2.13.1+cu132")
    able = Capabilities(
        devices=("cuda", "rocm"),
        dtypes=(torch.float16,),
        features=("sinks",),
        head_dims=(32, 64),
        block_sizes=range(32, 257, 32),
        needs=("torch>=2.14", "no_such_package", "pytest"),
        checks=(lambda target: f"has no kernels for blocks of {target.block_size}", lambda target: None),
    )
    assert reasons(able) == [
        "supports only these devices: cuda, rocm; the model is on cpu",
        "does not support sliding-window attention, which the model has",
        "supports only these head sizes: 32, 64; the model has 24",
        "supports only these dtypes: float16; the model runs in float32 (--dtype)",
        "supports only these block sizes: multiples of 32 up to 256; --block-size is 16",
        "needs torch>=2.14, and 2.13.1+cu132 is installed",
        "needs no_such_package, which is not installed",
        "has no kernels for blocks of 16",
    ]
    assert able.refusal(Target(CPU, torch.float32, [], 16)) == reasons(able)[0]
    assert reasons(Capabilities(features=("window", "sinks"))) == []


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92403)
    assert machine.installed("cudnn") == "9.24.3"
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert [machine.installed(library) for library in ("cudnn", "no_such_package", "pytest")] == [None, None, ""]
    assert (2, 11, 0) == machine.release("2.11.0+cu129") < machine.release("2.15") < machine.release("9.8.0")
