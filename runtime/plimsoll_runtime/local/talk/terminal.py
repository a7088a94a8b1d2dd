"""A chat in a terminal: reads lines, carries out commands, writes answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

from plimsoll_runtime.local.run_folder import state_root
from plimsoll_runtime.local.talk.commands import CommandError, EndOfTalk, is_command, run_command
from plimsoll_runtime.local.talk.notice import notice
from plimsoll_runtime.local.talk.place import Wish, find
from plimsoll_runtime.local.talk.stream import AskError, names
from plimsoll_runtime.local.talk.talk import Talk
from plimsoll_runtime.utils.progress import TransferProgress

Progress = contextlib.AbstractContextManager[TransferProgress]
PROMPT, MORE = "> ", ". "
KEPT_LINES = 1000


class Terminal:
    """One chat. Use as a context: it ends what it has started. Answers go to standard output, all else to standard
    error, so that what is said can be kept by a pipe. Entering raises AskError.
    """

    def __init__(self, wish: Wish, system: str | None, settings: Mapping[str, Any], progress: Progress) -> None:
        self._wish = wish
        self._system = system
        self._settings = settings
        self._progress = progress
        self._console = Console(stderr=True, highlight=False)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession
        self._talk: Talk
        self._notice: str | None = None

    def __enter__(self) -> Terminal:
        try:
            self._runner.run(self._open())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def converse(self) -> None:
        """Until the person leaves."""
        self._note(f"{self._talk.model} at {self._talk.server.url}; /help lists the commands")
        if self._notice is not None:
            self._note(f"{self._talk.model}: {self._notice}")
        with _history():
            for line in _lines():
                try:
                    self._take(line)
                except EndOfTalk:
                    return
                except (AskError, CommandError) as error:
                    self._note(str(error), "red")

    def _take(self, line: str) -> None:
        if is_command(line):
            self._note(run_command(line, self._talk, self._names))
            return
        try:
            self._runner.run(self._answer(line))
        except KeyboardInterrupt:
            _end_line()
            self._note("ended by Ctrl-C; what came is kept")
            return
        _end_line()
        if self._talk.pace is not None:
            cut = ", cut at its longest (--max-tokens)" if self._talk.finish_reason == "length" else ""
            self._note(f"{self._talk.pace}{cut}")

    async def _answer(self, line: str) -> None:
        async with aclosing(self._talk.say(self._session, line)) as chunks:
            thinking = False
            async for chunk in chunks:
                if chunk.thought:
                    thinking = True
                    self._console.print(Text(chunk.thought, style="dim italic"), end="", soft_wrap=True)
                if chunk.text:
                    if thinking:
                        self._console.print()
                    thinking = False
                    _write(chunk.text)

    def _names(self) -> list[str]:
        return self._runner.run(names(self._session, self._talk.server))

    def _note(self, text: str, style: str = "dim") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    async def _open(self) -> None:
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        with self._progress as progress:
            place = await find(self._wish, self._session, self._stack, progress)
        self._talk = Talk(place.server, place.model, self._system, self._settings)
        self._notice = await notice(self._session, place.server, place.model)

    def _close(self) -> None:
        with contextlib.closing(self._runner):
            self._runner.run(self._stack.aclose())


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _end_line() -> None:
    _write("\n")


def _lines() -> Iterator[str]:
    """What the person says, without what is empty. Ctrl-C gives a line up, Ctrl-D ends."""
    while True:
        try:
            line = _line()
        except KeyboardInterrupt:
            _end_line()
            continue
        except EOFError:
            _end_line()
            return
        if line:
            yield line


def _line() -> str:
    first, more = (PROMPT, MORE) if sys.stdin.isatty() else ("", "")
    parts = [input(first)]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        parts.append(input(more))
    return "\n".join(parts).strip()


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """What was typed in chats before can be called up again, where this Python can edit lines."""
    try:
        import readline
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    path = state_root() / "chat_history"
    with contextlib.suppress(FileNotFoundError, PermissionError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        readline.set_history_length(KEPT_LINES)
        readline.write_history_file(path)
        path.chmod(0o600)
