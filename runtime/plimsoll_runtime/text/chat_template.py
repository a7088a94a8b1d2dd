"""Chat templates, rendered as Transformers renders them.

A template comes with the model and is not trusted: it runs in Jinja's immutable sandbox, within bounds (see
`template_sandbox`), and sees plain data only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from plimsoll_runtime.text.template_sandbox import BoundedEnvironment, bounded, bounded_filter

Message = Mapping[str, Any]
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplateError(ValueError):
    """The template refused the messages, or is itself broken; the message says which."""


class ChatTemplateBoundsError(ChatTemplateError):
    """The template was stopped: it does what templates may not do, or too much of it."""


class ChatTemplate:
    """One model's template, or its named ones (`default`, `tool_use`, ...).

    `variables` are what a template may write by name: bos_token, eos_token and other special tokens.
    """

    def __init__(self, source: str | Mapping[str, str], variables: Mapping[str, str] | None = None) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source)
        self._variables = dict(variables or {})
        self._compiled: dict[str, jinja2.Template] = {}
        self._read: dict[str, frozenset[str]] = {}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. With `continue_final_message` it ends where the last message's content ends.

        Message fields that are None are left out. `variables` reach the template over the special tokens. Raises
        ChatTemplateError.
        """
        source = self.source(tools=tools is not None)
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        if continue_final_message:
            chat = _tagged(chat)
            add_generation_prompt = False
        try:
            template = self._compile(source)
            given = self._variables | dict(variables or {})
            with bounded(chat, tools, given):
                text = template.render(
                    messages=chat,
                    tools=tools,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **given,
                )
        except SecurityError as error:
            raise ChatTemplateBoundsError(f"the model's chat template refused the messages: {error}") from error
        except Exception as error:  # whatever is raised in there, the template did it
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error
        return _untagged(text) if continue_final_message else text

    def source(self, *, tools: bool) -> str:
        """The template that chats with or without tools are rendered by. Raises ChatTemplateError where none is."""
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise ChatTemplateError(
                f"the model has the chat templates {', '.join(sorted(self._sources))} and none is called default"
            )
        return self._sources[name]

    def variables(self, *, tools: bool) -> frozenset[str]:
        """What that template reads by name, functions included. Raises ChatTemplateError for one that is broken."""
        source = self.source(tools=tools)
        if source not in self._read:
            try:
                self._read[source] = frozenset(meta.find_undeclared_variables(environment().parse(source)))
            except Exception as error:  # whatever is raised in there, the template did it
                raise ChatTemplateError(f"the model's chat template cannot be read: {error}") from error
        return self._read[source]

    def _compile(self, source: str) -> jinja2.Template:
        if source not in self._compiled:
            self._compiled[source] = environment().from_string(source)
        return self._compiled[source]


def _tagged(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chat with a mark behind its last content, by which the end of that content is found again."""
    content = chat[-1].get("content") if chat else None
    if not isinstance(content, str):
        raise ChatTemplateError("continue_final_message needs a last message with text to continue")
    return [*chat[:-1], {**chat[-1], "content": content + _TAG}]


def _untagged(text: str) -> str:
    position = text.rfind(_TAG.strip())
    if position < 0:
        raise ChatTemplateError("the chat template does not show the last message, so it cannot be continued")
    kept = text[:position]
    return kept if text[position:].startswith(_TAG) else kept.rstrip()


def environment(**options: Any) -> BoundedEnvironment:
    """Where templates of others are compiled, to be rendered within `bounded`; `options` are Jinja's."""
    extensions = [_GenerationBlock, loopcontrols]
    made = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, **options)
    made.filters["tojson"] = bounded_filter("tojson", _tojson)
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass"), [], [], body, lineno=line)

    def _pass(self, caller: Macro) -> str:
        return str(caller())


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Dict:
    """`dict(...)` without the class itself, through whose attributes a template could leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)` that refuses underscore names, and whose text says nothing of what is in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and re.match("_", name):
        raise SecurityError(f"a chat template cannot store the attribute {name!r}")
