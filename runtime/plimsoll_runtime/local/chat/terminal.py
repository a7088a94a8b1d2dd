"""A chat in a terminal: notices about the model, input lines, commands, and streamed output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from rich.console import Console
from rich.text import Text

from plimsoll_runtime.errors import UNREADABLE
from plimsoll_runtime.local.chat.conversation import AskError, Server, Talk, names
from plimsoll_runtime.local.chat.server import ServerRequest, find
from plimsoll_runtime.local.run_folder import state_root
from plimsoll_runtime.utils.progress import TransferProgress


class EndOfTalk(Exception):
    """The user leaves the chat."""


class CommandError(Exception):
    """A chat command failed; the message says why, and what to do."""


def is_command(line: str) -> bool:
    """Return whether a line is a command, not a message for the model."""
    return line.startswith("/")


def run_command(line: str, talk: Talk, names: Callable[[], list[str]]) -> str:
    """Run a command and return a message for the user. `names` fetches the names of the server's models. Raises
    CommandError, EndOfTalk, and the errors of `names`.
    """
    word, _, rest = line.partition(" ")
    if word not in COMMANDS:
        raise CommandError(f"unknown command {word}; choose one of: {', '.join(COMMANDS)}")
    return COMMANDS[word][1](talk, rest.strip(), names)


def _help(_talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {word:<{width}}  {told}" for word, (told, _) in COMMANDS.items()]
    return "\n".join(
        [*lines, "A line that ends in \\ continues on the next line. Ctrl-C stops an output, Ctrl-D leaves the chat."]
    )


def _system(talk: Talk, rest: str, _names: Callable[[], list[str]]) -> str:
    if not rest:
        return "there is no system message" if talk.system is None else f"the system message is: {talk.system}"
    talk.system = None if rest == "none" else rest
    return "the system message is removed" if talk.system is None else "the system message is set"


def _clear(talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    count = len(talk.said)
    talk.said.clear()
    return f"removed {count} messages"


def _save(talk: Talk, rest: str, _names: Callable[[], list[str]]) -> str:
    if not rest:
        raise CommandError("/save needs a file: /save talk.json for JSON, or /save talk.md for Markdown")
    path = Path(rest).expanduser()
    document = {"model": talk.model, "messages": talk.messages}
    text = _markdown(talk) if path.suffix == ".md" else json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    return f"saved {len(talk.messages)} messages to {path}"


def _markdown(talk: Talk) -> str:
    parts = [f"**{message['role']}**\n\n{message['content']}\n" for message in talk.messages]
    return "\n".join([f"# {talk.model}\n", *parts])


def _model(talk: Talk, rest: str, names: Callable[[], list[str]]) -> str:
    offered = names()
    if not rest:
        return "\n".join(f"{'*' if name == talk.model else ' '} {name}" for name in offered)
    if rest not in offered:
        raise CommandError(f"the server has no model {rest!r}; choose one of: {', '.join(offered)}")
    talk.model = rest
    return f"switched to {rest}; it gets the conversation so far"


def _exit(_talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    raise EndOfTalk


COMMANDS: Mapping[str, tuple[str, Callable[[Talk, str, Callable[[], list[str]]], str]]] = {
    "/help": ("show this help", _help),
    "/system": ("TEXT: set the system message; none: remove it; alone: show it", _system),
    "/clear": ("remove all messages", _clear),
    "/save": ("FILE: save the conversation as JSON, or as Markdown if FILE ends in .md", _save),
    "/model": ("NAME: switch to another model of the server; alone: list the models", _model),
    "/exit": ("leave the chat", _exit),
}

LONGEST = 300
"""Maximum number of characters shown of a text from a server, which may be untrusted."""
NO_TEMPLATE = (
    "it has no chat template, so a Plimsoll server refuses chats with it; use /v1/completions to continue text"
)


async def notice(session: aiohttp.ClientSession, server: Server, model: str) -> str | None:
    """Return a line to show about the model: the server's `about` text or, for a model that generates without a chat
    template, NO_TEMPLATE; else None. Raises AskError if the server does not answer.
    """
    try:
        async with session.get(f"{server.url}/v1/models/{quote(model, safe='')}", headers=server.headers) as response:
            text = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise AskError(f"{server.url} does not answer: {error or type(error).__name__}") from error
    return _told(_card(text)) if response.status == 200 else None


def _card(text: bytes) -> Mapping[str, Any]:
    """Return the model's entry, or an empty one if `text` has another format."""
    try:
        card = msgspec.json.decode(text)
    except UNREADABLE:
        return {}
    return card if isinstance(card, dict) else {}


def _told(card: Mapping[str, Any]) -> str | None:
    about, abilities, task = card.get("about"), card.get("abilities"), card.get("task")
    if isinstance(about, str) and about:
        return "".join(char if char.isprintable() else " " for char in about)[:LONGEST]
    if task == "generate" and isinstance(abilities, list) and "chat" not in abilities:
        return NO_TEMPLATE
    return None


Progress = contextlib.AbstractContextManager[TransferProgress]
PROMPT, MORE = "> ", ". "
KEPT_LINES = 1000


class Terminal:
    """One chat, used as a context manager that stops the server it has started.

    Model output goes to standard output and everything else to standard error, so that a pipe receives only the output.
    Entering raises AskError.
    """

    def __init__(
        self, wish: ServerRequest, system: str | None, settings: Mapping[str, Any], progress: Progress
    ) -> None:
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
        """Read and answer lines until the user leaves."""
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
            self._note("stopped by Ctrl-C; the partial output is kept")
            return
        _end_line()
        if self._talk.pace is not None:
            cut = ", cut at the limit of --max-tokens" if self._talk.finish_reason == "length" else ""
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
    """Yield the user's lines, without empty ones. Ctrl-C discards a line, Ctrl-D ends the input."""
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
    """Load the input history of earlier chats and save it at the end, if Python has readline and input is a
    terminal.
    """
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
