"""Choice among a repository's GGUF files."""

from __future__ import annotations

import pytest

from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.weights.files import choose_gguf, shards_of

FILES = [
    "m-BF16-00001-of-00002.gguf",
    "m-BF16-00002-of-00002.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "mmproj-Q8_0.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, ("m-Q4_K_M.gguf",)),
        ("Q4_K_M", ("m-Q4_K_M.gguf",)),
        ("q4_k_s", ("m-Q4_K_S.gguf",)),
        ("m-Q4_K_S.gguf", ("m-Q4_K_S.gguf",)),
        ("BF16", ("m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf")),
        ("m-BF16-00002-of-00002.gguf", ("m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf")),
    ],
)
def test_by_kind_and_by_name(wanted: str | None, chosen: tuple[str, ...]) -> None:
    assert choose_gguf("hf://a/b", FILES, wanted) == chosen


@pytest.mark.parametrize("wanted", ["Q4", "Q8_0", "Q4_K", "other.gguf"])
def test_what_is_not_there(wanted: str) -> None:
    with pytest.raises(SourceError, match=r"hf://a/b has no GGUF .*use hf://ORG/NAME:FILE with one of m-BF16-00001"):
        choose_gguf("hf://a/b", FILES, wanted)


def test_the_only_one_is_taken_whatever_its_kind() -> None:
    assert choose_gguf("hf://a/b", ["folder/odd.gguf", "mmproj.gguf"], None) == ("folder/odd.gguf",)


@pytest.mark.parametrize(("files", "wanted"), [(["a.gguf", "b.gguf"], None), (["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0")])
def test_nobody_guesses_between_several(files: list[str], wanted: str | None) -> None:
    with pytest.raises(SourceError, match=r"several matching GGUF files; .* one of a.*, b"):
        choose_gguf("hf://a/b", files, wanted)


def test_shards_by_the_name_of_any() -> None:
    assert shards_of("m.gguf") == ("m.gguf",)
    assert shards_of("m-00003-of-00003.gguf") == tuple(f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3))
