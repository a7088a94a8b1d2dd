"""Cached files whose content does not fit their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from plimsoll_runtime.weights.sources.snapshot import EDGE, PARSED, faults, forget_list, remove_faults

WEIGHTS = save({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)}, {"format": "pt"})
PAGE = b"\n<!DOCTYPE html><html><body>Log in</body></html>"
LARGE = b"[" + b"1," * PARSED + b"1]"


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository") / "snapshots" / ("a" * 40)
    made.mkdir(parents=True)
    return made


def why(snapshot: Path, name: str, content: bytes) -> str | None:
    (snapshot / name).write_bytes(content)
    found = faults(snapshot, [name])
    return str(found[0]) if found else None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(WEIGHTS) - 1))
def test_safetensors_that_are_cut_anywhere(snapshot: Path, count: int) -> None:
    assert why(snapshot, "w.safetensors", WEIGHTS[:count]) is not None


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda deep: st.lists(deep) | st.dictionaries(st.text(), deep))
)
def test_json_is_whole_until_it_is_cut(snapshot: Path, value: object) -> None:
    text = json.dumps({"value": value}).encode()
    assert why(snapshot, "a.json", text) is None
    assert why(snapshot, "a.json", text[:-1]) is not None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("w.safetensors", WEIGHTS, None),
        ("w.safetensors", WEIGHTS + b"0", f"it has {len(WEIGHTS) + 1} bytes, and its header says {len(WEIGHTS)}"),
        ("w.safetensors", PAGE, "no"),
        ("t.json", LARGE, None),
        ("t.json", LARGE[:-EDGE], "it is not JSON, or is truncated"),
        ("t.json", PAGE * (1 + PARSED // len(PAGE)), "it is not JSON, or is truncated"),
        ("t.json", b"", "it is not JSON"),
        ("m.gguf", b"GGUF\x03", None),
        ("m.gguf", PAGE, "it is not GGUF"),
        ("merges.txt", PAGE, "it is a web page"),
        ("merges.txt", b"#version: 0.2\na b\n", None),
        ("added.txt", b"", None),
        ("tokenizer.model", PAGE.lower(), "it is a web page"),
        ("chat_template.jinja", b"{% if a < b %}<html>{% endif %}", None),
    ],
)
def test_what_a_name_promises(snapshot: Path, name: str, content: bytes, words: str | None) -> None:
    found = why(snapshot, name, content)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize(
    "listed",
    [
        {"format_version": 1, "files": {"merges.txt": {"size": 4, "blob_id": "x"}}},
        {"format_version": 1, "files": {"merges.txt": {"size": 130, "lfs_sha256": "x", "lfs_size": 4}}},
    ],
)
def test_what_the_hub_says_of_sizes(snapshot: Path, listed: object) -> None:
    path = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(listed))
    assert why(snapshot, "merges.txt", b"four") is None
    assert why(snapshot, "merges.txt", b"three") == "merges.txt (it has 5 bytes, and the hub says 4)"
    forget_list(snapshot)
    assert why(snapshot, "merges.txt", b"three") is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("w.safetensors", b"no safetensors, but what the hub has", None),
        ("m.gguf", b"no GGUF", None),
        ("w.safetensors", bytes(4096), "it contains only zeros"),
        ("m.gguf", bytes(4096), "it contains only zeros"),
        ("config.json", bytes(64), "it is not JSON"),
    ],
)
def test_what_is_as_long_as_listed(snapshot: Path, name: str, content: bytes, words: str | None) -> None:
    path = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"files": {name: {"size": len(content)}}}))
    (snapshot / name).write_bytes(content)
    found = faults(snapshot, [name])
    forget_list(snapshot)
    assert [fault.listed for fault in found] == [True] * (words is not None)
    assert all(words is not None and words in fault.why for fault in found)


@pytest.mark.parametrize(
    "listed", ["", "[]", '{"files": []}', '{"files": {"merges.txt": {}}}', '{"files": {"merges.txt": 4}}']
)
def test_a_list_in_another_form_says_nothing(snapshot: Path, listed: str) -> None:
    path = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(listed)
    assert why(snapshot, "merges.txt", b"three") is None
    forget_list(snapshot)


def test_a_name_is_removed_with_its_bytes(tmp_path: Path) -> None:
    snapshot, blob = tmp_path / "snapshots" / "x", tmp_path / "blobs" / "1"
    for folder in (snapshot, blob.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(PAGE)
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "plain.json").write_bytes(PAGE)
    remove_faults(snapshot, faults(snapshot, ["config.json", "plain.json"]))
    assert list(snapshot.iterdir()) == list(blob.parent.iterdir()) == []
