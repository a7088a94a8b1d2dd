"""Renders chat templates like Transformers.

A template comes with the model and is not trusted: it runs in Jinja's immutable sandbox, within limits (see
`template_sandbox`), and gets only plain data.
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
    """The template rejected the messages, or is broken; the message says which."""


class ChatTemplateBoundsError(ChatTemplateError):
    """The template was stopped because it did something forbidden, or exceeded a limit."""


class ChatTemplate:
    """A model's template, or its named templates (`default`, `tool_use`, ...).

    `variables` are values that a template may use by name: bos_token, eos_token and other special tokens.
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
        """Return the text of the prompt. With `continue_final_message`, the text ends with the last message's content.

        Message fields that are None are left out. `variables` override the special tokens. Raises ChatTemplateError.
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
        except Exception as error:  # every error in here is the template's
            raise ChatTemplateError(f"the model's chat template refused the messages: {error}") from error
        return _untagged(text) if continue_final_message else text

    def source(self, *, tools: bool) -> str:
        """Return the template for chats with or without tools. Raises ChatTemplateError if there is none."""
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise ChatTemplateError(
                f"the model has the chat templates {', '.join(sorted(self._sources))}, but none named default"
            )
        return self._sources[name]

    def variables(self, *, tools: bool) -> frozenset[str]:
        """Return the names that the template for chats with or without tools reads, including functions. Raises
        ChatTemplateError if it is broken.
        """
        source = self.source(tools=tools)
        if source not in self._read:
            try:
                self._read[source] = frozenset(meta.find_undeclared_variables(environment().parse(source)))
            except Exception as error:  # every error in here is the template's
                raise ChatTemplateError(f"the model's chat template cannot be parsed: {error}") from error
        return self._read[source]

    def _compile(self, source: str) -> jinja2.Template:
        if source not in self._compiled:
            self._compiled[source] = environment().from_string(source)
        return self._compiled[source]


def _tagged(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Append a marker to the last content, so that its end can be found in the rendered text."""
    content = chat[-1].get("content") if chat else None
    if not isinstance(content, str):
        raise ChatTemplateError("continue_final_message needs a last message with text to continue")
    return [*chat[:-1], {**chat[-1], "content": content + _TAG}]


def _untagged(text: str) -> str:
    position = text.rfind(_TAG.strip())
    if position < 0:
        raise ChatTemplateError("the chat template does not render the last message, so it cannot be continued")
    kept = text[:position]
    return kept if text[position:].startswith(_TAG) else kept.rstrip()


def environment(**options: Any) -> BoundedEnvironment:
    """Return the environment for compiling untrusted templates, which must be rendered within `bounded`. `options` are
    Jinja's.
    """
    extensions = [_GenerationBlock, loopcontrols]
    made = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, **options)
    made.filters["tojson"] = bounded_filter("tojson", _tojson)
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


class _GenerationBlock(Extension):
    """Passes the content of `{% generation %}` through. The block marks the assistant's text for training."""

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
    """Serialise without escaping HTML, which Jinja's own filter does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Dict:
    """`dict(...)` without access to the class, through whose attributes a template could leave the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)` that rejects names with a leading underscore, and whose repr hides its content."""

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
