"""An option of the engine or the server: declared once, as a field of a frozen dataclass.

    max_sequences: int = option(128, "most sequences in one batch", RUNTIME)

The field gives the name, the type and the default. The command line (`cli.options`), the arguments of `LLM`, the
`runtime` of a host's models and the reference (`cli.reference`) are made of these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils import option_values as values

Default = TypeVar("Default")


@dataclass(frozen=True, slots=True)
class Option:
    """A declaration. `name`, `kind`, `default`, `required` and `repeats` are the field's: `fields_of` fills them in.

    `where`: the commands that have the flag, "LLM", and "host API" if a host takes it in the `runtime` of a model.
    `group`: the heading in `--help`. `help`: one clause without the default. `flag`: * is the name with hyphens, ""
    no flag at all. `unit`: tokens, seconds, bytes, share, days or steps. `usual`: the default in words, if its value
    does not say it. `minimum` and `maximum` bound numbers (None: 1 and `LIMIT` for whole numbers that are no bytes, 0
    and no bound for others).
    `choices`: all values. `parse` reads a word (None: by kind and unit) and raises OptionError; it checks choices, too.
    `variable`: of the environment, read by `parse_variable` (None: as the flag's words, with commas between them).
    `collect` makes the value of all words of an option that repeats.
    `deployment` and `pool`: its path below `spec` of a ModelDeployment and RuntimePool, with * for its name.
    """

    where: tuple[str, ...]
    group: str
    help: str = ""
    flag: str = "--*"
    metavar: str | None = None
    unit: str = ""
    usual: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    parse: Callable[[str], Any] | None = None
    variable: str = ""
    parse_variable: Callable[[str], Any] | None = None
    collect: Callable[[list[Any]], Any] = tuple
    deployment: str = ""
    pool: str = ""
    name: str = ""
    kind: type = str
    default: Any = None
    required: bool = False
    repeats: bool = False

    @property
    def camel(self) -> str:
        """The name as JSON has it."""
        return camel(self.name)

    @property
    def usual_text(self) -> str:
        """The default as `--help` shows it; empty if there is nothing to say."""
        if self.usual is not None or self.default is None or self.kind is bool or self.repeats:
            return self.usual or ""
        if self.unit == "share":
            return f"{self.default:.0%}"
        if self.unit == "bytes" and self.kind is int:
            return values.amount_text(self.default)
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def read(self, text: str) -> Any:
        """The value of a word. Raises OptionError."""
        return (self.parse or self._parse_of_kind())(text)

    def read_variable(self, text: str) -> Any:
        """The value of the environment's text; the values, if the option repeats. Raises UsageError."""
        try:
            if self.parse_variable is not None:
                return self.parse_variable(text)
            return [self.read(word) for word in values.words(text)] if self.repeats else self.read(text)
        except values.OptionError as error:
            raise UsageError(f"{self.variable}: {error}") from error

    def check(self, value: Any, name: str) -> None:
        """Raises UsageError for a value that is none of the choices or out of bounds."""
        if value is None:
            return
        if self.choices and self.parse is None and value not in self.choices:
            raise UsageError(f"{name} must be one of {', '.join(map(str, self.choices))}, not {value}")
        if self.minimum is not None and not value >= self.minimum:
            raise UsageError(f"{name} must be at least {self.minimum:g}, not {value}")
        if self.maximum is not None and not value <= self.maximum:
            raise UsageError(f"{name} must be at most {self.maximum:.0f}, not {value}")

    def _parse_of_kind(self) -> Callable[[str], Any]:
        if self.kind is int and self.unit == "bytes":
            return values.amount
        if self.kind is int and self.choices:
            return partial(values.one_of, choices=self.choices)
        if self.kind is int:
            return partial(values.whole, low=int(self.minimum or 0), high=int(self.maximum or 0))
        if self.kind is float:
            return values.share if self.unit == "share" else partial(values.seconds, least=self.minimum or 0.0)
        return values.switch if self.kind is bool else self.kind


def camel(name: str) -> str:
    """`max_waiting` -> `maxWaiting`."""
    return re.sub("_(.)", lambda match: match[1].upper(), name)


def declared(text: str, like: Option, **more: Any) -> Mapping[str, Option]:
    """Metadata of a field without a default: an Option like another, with this help and more of its fields."""
    return {"option": replace(like, help=text, **more)}


def option(default: Default, text: str, like: Option, **more: Any) -> Default:
    """A dataclass field with this default, and an Option as `declared` makes it."""
    found: Default = field(default=default, metadata=declared(text, like, **more))
    return found


Declared = Option | type[Any]
"""What a field has: an option, or a record of options."""


@cache
def fields_of(record: type[Any]) -> Mapping[str, Declared]:
    """The fields of a dataclass that have options, in their order."""
    hints = get_type_hints(record)
    found: dict[str, Declared] = {}
    for each in fields(record):
        hint = hints[each.name]
        kind = next(kind for kind in get_args(hint) if kind is not type(None)) if isinstance(hint, UnionType) else hint
        if "option" in each.metadata:
            found[each.name] = _completed(each.metadata["option"], each.name, kind, each.default)
        elif isinstance(kind, type) and is_dataclass(kind) and fields_of(kind):
            found[each.name] = kind
    return MappingProxyType(found)


def options_of(record: type, where: str = "") -> Iterator[Option]:
    """The options of a record and of the records in its fields; with `where`, those of that place only."""
    for each in fields_of(record).values():
        if not isinstance(each, Option):
            yield from options_of(each, where)
        elif not where or where in each.where:
            yield each


def check_options(record: Any) -> None:
    """Check the values of a record's own options. Raises UsageError."""
    for name, each in fields_of(record.__class__).items():
        if isinstance(each, Option):
            each.check(getattr(record, name), name)


def _completed(made: Option, name: str, kind: Any, default: Any) -> Option:
    repeats = made.collect is not tuple or get_origin(kind) is tuple
    choices = get_args(kind) if get_origin(kind) is Literal else made.choices
    kind = kind if kind in (bool, int, float, Path) else str
    is_count = kind is int and made.unit != "bytes"
    least = 1 if is_count else 0 if kind in (int, float) else None
    most = values.LIMIT if is_count and not choices else None
    return replace(
        made,
        name=name,
        kind=kind,
        default=None if default is MISSING or repeats else default,
        required=default is MISSING,
        repeats=repeats,
        flag=made.flag.replace("*", name.replace("_", "-")),
        choices=choices,
        minimum=least if made.minimum is None else made.minimum,
        maximum=most if made.maximum is None else made.maximum,
        deployment=made.deployment.replace("*", camel(name)),
        pool=made.pool.replace("*", camel(name)),
    )
