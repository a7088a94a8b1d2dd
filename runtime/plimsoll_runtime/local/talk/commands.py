"""What a person may type in a chat beside what is meant for the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from plimsoll_runtime.local.talk.talk import Talk


class EndOfTalk(Exception):
    """The person leaves."""


class CommandError(Exception):
    """A command that cannot be carried out; the message says why, and what to do."""


def is_command(line: str) -> bool:
    """Whether a line is not for the model."""
    return line.startswith("/")


def run_command(line: str, talk: Talk, names: Callable[[], list[str]]) -> str:
    """Carry out a command; what to tell the person. `names` asks the server for its models. Raises CommandError,
    EndOfTalk, and what `names` raises.
    """
    word, _, rest = line.partition(" ")
    if word not in COMMANDS:
        raise CommandError(f"there is no command {word}; there are: {', '.join(COMMANDS)}")
    return COMMANDS[word][1](talk, rest.strip(), names)


def _help(_talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {word:<{width}}  {told}" for word, (told, _) in COMMANDS.items()]
    return "\n".join([*lines, "A line that ends in \\ goes on in the next. Ctrl-C ends an answer, Ctrl-D the chat."])


def _system(talk: Talk, rest: str, _names: Callable[[], list[str]]) -> str:
    if not rest:
        return "there is no system message" if talk.system is None else f"the system message is: {talk.system}"
    talk.system = None if rest == "none" else rest
    return "it has no system message any more" if talk.system is None else "it has a new system message"


def _clear(talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    count = len(talk.said)
    talk.said.clear()
    return f"{count} messages are forgotten"


def _save(talk: Talk, rest: str, _names: Callable[[], list[str]]) -> str:
    if not rest:
        raise CommandError("/save needs a file: /save talk.json, or talk.md to read it")
    path = Path(rest).expanduser()
    document = {"model": talk.model, "messages": talk.messages}
    text = _markdown(talk) if path.suffix == ".md" else json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    return f"{len(talk.messages)} messages are in {path}"


def _markdown(talk: Talk) -> str:
    parts = [f"**{message['role']}**\n\n{message['content']}\n" for message in talk.messages]
    return "\n".join([f"# {talk.model}\n", *parts])


def _model(talk: Talk, rest: str, names: Callable[[], list[str]]) -> str:
    offered = names()
    if not rest:
        return "\n".join(f"{'*' if name == talk.model else ' '} {name}" for name in offered)
    if rest not in offered:
        raise CommandError(f"the server has no model {rest!r}; it has: {', '.join(offered)}")
    talk.model = rest
    return f"{rest} answers from now on, and sees what was said"


def _exit(_talk: Talk, _rest: str, _names: Callable[[], list[str]]) -> str:
    raise EndOfTalk


COMMANDS: Mapping[str, tuple[str, Callable[[Talk, str, Callable[[], list[str]]], str]]] = {
    "/help": ("show this", _help),
    "/system": ("TEXT: what the model is told before everything else; none: nothing; alone: show it", _system),
    "/clear": ("forget what was said", _clear),
    "/save": ("FILE: write the conversation, as JSON, or to be read where FILE ends in .md", _save),
    "/model": ("NAME: talk to another model of the server; alone: list them", _model),
    "/exit": ("leave", _exit),
}
