"""Options of the engine and the server, each declared once as a field of a frozen dataclass.

    max_sequences: int = option(128, "maximum number of sequences that run at once", RUNTIME)

The field has the name, the type and the default. The command line (`cli.options`), the arguments of `LLM`, the
`runtime` of a host's models and the reference (`cli.reference`) are generated from these declarations.
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
    """The declaration of an option. `fields_of` fills in `name`, `kind`, `default`, `required` and `repeats` from the
    field.

    - `where`: commands that have the flag, "LLM", and "host API" if a host accepts it in the `runtime` of a model.
    - `group`: heading in `--help`. `help`: one clause without the default.
    - `flag`: * stands for the name with hyphens, "" for no flag. `metavar`: placeholder of the value.
    - `unit`: tokens, seconds, bytes, share, days or steps. `usual`: the default in words, if its value does not say it.
    - `minimum`, `maximum`: bounds of numbers. None: 1 and `LIMIT` for integers that are not bytes, 0 and no maximum for
      others.
    - `choices`: all values. `parse` converts a word (None: by kind and unit), checks choices and raises OptionError.
    - `variable`: environment variable, converted by `parse_variable` (None: like the flag's words, separated by
      commas).
    - `collect`: combines all words of a repeatable option.
    - `deployment`, `pool`: path below `spec` of a ModelDeployment and RuntimePool, with * for the name.
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
        """The name in JSON."""
        return camel(self.name)

    @property
    def usual_text(self) -> str:
        """The default for `--help`, or ""."""
        if self.usual is not None or self.default is None or self.kind is bool or self.repeats:
            return self.usual or ""
        if self.unit == "share":
            return f"{self.default:.0%}"
        if self.unit == "bytes" and self.kind is int:
            return values.amount_text(self.default)
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def read(self, text: str) -> Any:
        """Convert a word of the command line to the option's value. Raises OptionError."""
        return (self.parse or self._parse_of_kind())(text)

    def read_variable(self, text: str) -> Any:
        """Convert the environment variable to a value, or to a list if the option is repeatable. Raises UsageError."""
        try:
            if self.parse_variable is not None:
                return self.parse_variable(text)
            if self.repeats:
                return [self.read(word) for word in values.words(text)]
            value = self.read(text)
        except values.OptionError as error:
            raise UsageError(f"{self.variable}: {error}") from error
        self.check(value, self.variable)
        return value

    def check(self, value: Any, name: str) -> None:
        """Raise UsageError for a value that is not among the choices or out of bounds."""
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
    """Convert `max_waiting` to `maxWaiting`."""
    return re.sub("_(.)", lambda match: match[1].upper(), name)


def declared(text: str, like: Option, **more: Any) -> Mapping[str, Option]:
    """Return metadata of a field without a default: an Option like `like`, with this help and other changes."""
    return {"option": replace(like, help=text, **more)}


def option(default: Default, text: str, like: Option, **more: Any) -> Default:
    """Return a dataclass field with this default, and an Option as in `declared`."""
    found: Default = field(default=default, metadata=declared(text, like, **more))
    return found


Declared = Option | type[Any]
"""The declaration of a field: an option, or a record of options."""


@cache
def fields_of(record: type[Any]) -> Mapping[str, Declared]:
    """Return the option or record of each field of a dataclass that has options, by name, in order."""
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
    """Yield the options of a record and of nested records; with `where`, only those available there."""
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
