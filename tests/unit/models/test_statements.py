"""Each row of the table of statements in docs/tasks/models.md, on a checkpoint made for it."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from model_support.contradictions import ROWS, Change, nothing
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_runtime.driver.build.model_facts import from_files
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.text.tokenizer import load_tokenizer
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
DOCS = Path(__file__).parents[3] / "docs" / "tasks" / "models.md"
PROMPT = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7])
"""Longer than any window."""


@cache
def outcomes() -> dict[str, str]:
    """Return the table's outcome of each row."""
    table = DOCS.read_text().partition("<!-- statements: begin -->")[2].partition("<!-- statements: end -->")[0]
    return dict(re.findall(r"^\| `([a-z-]+)` \|.*\| (followed|warned|refused) \|", table, re.MULTILINE))


def rows(*wanted: str) -> list[str]:
    return [row for row, outcome in outcomes().items() if outcome in wanted]


@dataclass(frozen=True, eq=False)
class Seen:
    """The behaviour of a model that a user sees: numbers, stop tokens, chats."""

    logits: Tensor
    ends: tuple[int, ...]
    chat: str | None

    def same(self, other: Seen) -> bool:
        """Return whether two models behave equally."""
        same = torch.allclose(self.logits, other.logits, atol=1e-6, rtol=0)
        return same and (self.ends, self.chat) == (other.ends, other.chat)


def seen(folder: Path) -> Seen:
    files = resolve(str(folder))
    model = from_files(EngineConfig(model=str(folder)), files, CPU)
    assert model.files is not None
    decoder = load_decoder(model.files, model.outline, torch.float32, device=CPU)
    backend = ReferenceBackend(KvCache(model.outline.facts.attention, 2, 16, torch.float32, CPU))
    count = len(PROMPT)
    batch = AttentionBatch([count], [count], BlockTables.of([[1]]), torch.arange(count) + 16)
    with torch.inference_mode():
        logits = decoder.logits(decoder(PROMPT, torch.arange(count), backend.begin(batch)))
    template = load_tokenizer(files).chat_template
    chat = None if template is None else template.render([{"role": "user", "content": "w1"}])
    return Seen(logits, tuple(model.eos_token_ids), chat)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that saves the model of a row as Transformers does."""

    @cache
    def make(row: str) -> Path:
        folder = tmp_path_factory.mktemp(row)
        save_model(make_model(ROWS[row].kind, ROWS[row].values), folder)
        return folder

    return make


def changed(saved: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(saved, folder)
    change(folder)
    return folder


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_table_has_these_rows() -> None:
    assert list(outcomes()) == list(ROWS)


@pytest.mark.matrix(10)
@pytest.mark.parametrize("row", ROWS)
def test_a_model_without_contradiction_is_served_without_a_word(
    row: str, saved: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen(changed(saved(row), tmp_path / "m", ROWS[row].like or nothing))
    assert not warnings(caplog)


@pytest.mark.matrix(4)
@pytest.mark.parametrize("row", rows("followed", "warned"))
def test_one_statement_counts(
    row: str, saved: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = ROWS[row]
    found = seen(changed(saved(row), tmp_path / "m", case.change))
    told = warnings(caplog)
    if outcomes()[row] == "followed":
        assert not told
    else:
        assert any(all(words in each for words in case.says) for each in told), told
        assert all(each.startswith("m: ") for each in told)
    if case.like is not None:
        assert found.same(seen(changed(saved(row), tmp_path / "like", case.like)))
    if case.unlike is not None:
        assert not found.same(seen(changed(saved(row), tmp_path / "unlike", case.unlike)))
    assert case.like is not None or case.unlike is not None


@pytest.mark.matrix(3)
@pytest.mark.parametrize("row", rows("refused"))
def test_both_statements_are_refused(row: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = changed(saved(row), tmp_path / "m", ROWS[row].change)
    with pytest.raises(ModelError) as refusal:
        seen(folder)
    message = str(refusal.value)
    assert all(words in message for words in ROWS[row].says), message
    assert re.search("correct|download both from one revision|keep one|merge it", message), message
