"""`plimsoll chat` and `plimsoll ask` as processes, with a server that they start for a model of random weights."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

PATIENCE = 120.0
PLIMSOLL = (sys.executable, "-P", "-m", "plimsoll_runtime")


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PLIMSOLL_API_KEY": "", "TERM": "dumb"}


def read_all(terminal: int) -> bytes:
    """Read everything until the other end is closed by all processes."""
    parts = []
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 4096):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.long
def test_a_chat_in_a_terminal(tiny_model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PLIMSOLL, "chat", str(tiny_model), "--max-tokens", "4", "--temperature", "0", "--system", "Be brief."],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    os.close(theirs)
    os.write(ours, b"Hello\\\nthere\n/nonsense\nAgain?\n" + f"/save {saved}\n/exit\n".encode())
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(read_all, ours)
        told = process.communicate(timeout=PATIENCE)[1].decode()
        written = shown.result(timeout=PATIENCE).decode(errors="replace")
    os.close(ours)
    assert process.returncode == 0, told
    messages = json.loads(saved.read_text())["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Hello\nthere"
    assert "> " in written
    assert messages[2]["content"].strip() in written
    assert "unknown command /nonsense" in told
    assert len(re.findall(r"^4 tokens, ", told, re.M)) == 2
    assert "cut at the limit of --max-tokens" in told
    history = (tmp_path / "state" / "plimsoll" / "chat_history").read_text()
    assert "Again?" in history
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tiny_model) in (p.info["cmdline"] or ())]


@pytest.mark.long
def test_a_model_without_a_chat_template_is_announced(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model.iterdir():
        (folder / file.name).symlink_to(file)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": None}))
    chat = subprocess.run(
        [*PLIMSOLL, "chat", str(folder)],
        input="/exit\n",
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=PATIENCE,
        check=False,
    )
    assert chat.returncode == 0, chat.stderr
    assert "/help lists the commands\nmodel: it has no chat template" in chat.stderr


@pytest.mark.long
def test_a_question_through_a_pipe(tiny_model: Path, tmp_path: Path) -> None:
    asked = subprocess.run(
        [*PLIMSOLL, "ask", "--model", str(tiny_model), "--max-tokens", "3", "--temperature", "0", "What is this?"],
        input="a\nb\n",
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=PATIENCE,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.endswith("\n")
    assert len(asked.stdout) > 1


def test_questions_without_an_answer(tmp_path: Path) -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PLIMSOLL, "ask", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(tmp_path),
            timeout=PATIENCE,
            check=False,
        )

    nothing = ask()
    assert nothing.returncode == 2
    assert "the question is empty" in nothing.stderr
    nobody = ask("Why?")
    assert nobody.returncode == 1
    assert nobody.stderr.startswith("plimsoll ask: no answer: no `plimsoll up` is running")
    broken = ask("--model", str(tmp_path), "Why?")
    assert broken.returncode == 1
    assert "config.json" in broken.stderr
