"""Types from the documentation of pydantic, msgspec and attrs, and the schemas that these generate for them."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import attrs
import msgspec
import pydantic
from msgspec import Meta
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict


class Fruit(enum.Enum):
    pear = "pear"
    banana = "banana"


class Level(enum.IntEnum):
    low = 1
    high = 2


class Flag(enum.Flag):
    a = 1
    b = 2


class Point(NamedTuple):
    x: int
    y: str = "y"


class Movie(TypedDict, total=False):
    name: str
    year: int


@dataclass
class Plain:
    a: int
    b: list[str] | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    meows: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: float


class Tagged(BaseModel):
    kind: Literal["tagged"] = "tagged"


class Other(BaseModel):
    kind: Literal["other"] = "other"


class Pets(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    others: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []


class Loose(BaseModel):
    either: Tagged | Other = Field(discriminator="kind")


class Tree(BaseModel):
    name: str = Field(max_length=5, description="Of the node.")
    children: list[Tree] = Field(default=[], max_length=2)
    parent: Tree | None = None


class Closed(BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int = Field(1, alias="b", ge=0, le=9)
    c: tuple[int, str] | None = None


class Open(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    a: str


class Invoice(BaseModel):
    total: decimal.Decimal
    net: Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)]
    due: datetime.date
    sent: datetime.datetime | None
    items: list[Plain]


class Lifted(pydantic.RootModel[dict[str, list[int]]]):
    pass


PYDANTIC: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "None": None,
    "Any": Any,
    "object": object,
    "Decimal": decimal.Decimal,
    "Decimal with digits": Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)],
    "Decimal with bounds": Annotated[decimal.Decimal, Field(gt=0, le=10)],
    "complex": complex,
    "datetime": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "UUID": uuid.UUID,
    "Path": pathlib.Path,
    "Pattern": re.Pattern,
    "IPv4Address": ipaddress.IPv4Address,
    "IPv4Interface": ipaddress.IPv4Interface,
    "IPv4Network": ipaddress.IPv4Network,
    "IPv6Address": ipaddress.IPv6Address,
    "IPv6Interface": ipaddress.IPv6Interface,
    "IPv6Network": ipaddress.IPv6Network,
    "Enum": Fruit,
    "IntEnum": Level,
    "Literal": Literal["a", 1, None, True],
    "list": list[int],
    "tuple": tuple[int, str, bool],
    "tuple of any length": tuple[int, ...],
    "empty tuple": tuple[()],
    "NamedTuple": Point,
    "set": set[int],
    "frozenset": frozenset[str],
    "deque": collections.deque[int],
    "dict": dict[str, int],
    "dict of ints": dict[int, str],
    "dict of floats": dict[float, str],
    "dict of UUIDs": dict[uuid.UUID, int],
    "dict of dates": dict[datetime.date, int],
    "dict of enums": dict[Fruit, int],
    "dict of literals": dict[Literal["a", "b"], Plain],
    "dict of patterns": dict[Annotated[str, Field(pattern="^x-[a-z]$")], int],
    "dict of lengths": dict[Annotated[str, Field(min_length=2, max_length=3)], int],
    "defaultdict": collections.defaultdict[str, int],
    "Counter": collections.Counter[str],
    "OrderedDict": collections.OrderedDict[str, int],
    "TypedDict": Movie,
    "dataclass": Plain,
    "Union": int | str | list[bool],
    "Optional": int | None,
    "int with bounds": Annotated[int, Field(gt=3, le=90, multiple_of=3)],
    "float with bounds": Annotated[float, Field(ge=0.5, lt=1)],
    "float that is finite": pydantic.FiniteFloat,
    "str with lengths": Annotated[str, Field(min_length=2, max_length=4)],
    "str with a pattern": Annotated[str, Field(pattern=r"^\d{3}-\w+$")],
    "list with lengths": Annotated[list[int], Field(min_length=1, max_length=2)],
    "set with lengths": Annotated[set[int], Field(max_length=1)],
    "dict with lengths": Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    "PositiveInt": pydantic.PositiveInt,
    "NonPositiveFloat": pydantic.NonPositiveFloat,
    "StrictStr": pydantic.StrictStr,
    "Json": pydantic.Json[list[int]],
    "SecretStr": pydantic.SecretStr,
    "SecretBytes": pydantic.SecretBytes,
    "Base64Bytes": pydantic.Base64Bytes,
    "Base64UrlStr": pydantic.Base64UrlStr,
    "ByteSize": pydantic.ByteSize,
    "FilePath": pydantic.FilePath,
    "DirectoryPath": pydantic.DirectoryPath,
    "NewPath": pydantic.NewPath,
    "PastDate": pydantic.PastDate,
    "AwareDatetime": pydantic.AwareDatetime,
    "NaiveDatetime": pydantic.NaiveDatetime,
    "UUID4": pydantic.UUID4,
    "JsonValue": pydantic.JsonValue,
    "ImportString": pydantic.ImportString,
    "AnyUrl": pydantic.AnyUrl,
    "HttpUrl": pydantic.HttpUrl,
    "PostgresDsn": pydantic.PostgresDsn,
    "IPvAnyAddress": pydantic.IPvAnyAddress,
    "a model with a discriminator": Pets,
    "a model with a discriminator that has a default": Loose,
    "a model that refers to itself": Tree,
    "a model that is closed": Closed,
    "a model that is open": Open,
    "a model of money": Invoice,
    "a root model": Lifted,
    "a list of models": list[Invoice],
}


class Base(msgspec.Struct):
    name: Annotated[str, Meta(max_length=5)]
    next: Base | None = None


class Get(msgspec.Struct, tag=True):
    key: str


class Put(msgspec.Struct, tag=True):
    key: str
    value: int


class Row(msgspec.Struct, array_like=True):
    x: int
    y: float = 0.0


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    some_name: int
    with_default: list[str] = []


@attrs.define
class Made:
    a: int
    b: dict[str, float] | None = None


MSGSPEC: dict[str, Any] = {
    "None": None,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "bytearray": bytearray,
    "Any": Any,
    "Raw": msgspec.Raw,
    "datetime": datetime.datetime,
    "aware datetime": Annotated[datetime.datetime, Meta(tz=True)],
    "date": datetime.date,
    "time": datetime.time,
    "aware time": Annotated[datetime.time, Meta(tz=True)],
    "timedelta": datetime.timedelta,
    "UUID": uuid.UUID,
    "Decimal": decimal.Decimal,
    "Enum": Fruit,
    "IntEnum": Level,
    "Flag": Flag,
    "Literal": Literal["a", 1, None],
    "list": list[int],
    "tuple": tuple[int, str],
    "tuple of any length": tuple[int, ...],
    "NamedTuple": Point,
    "set": set[int],
    "frozenset": frozenset[str],
    "dict": dict[str, int],
    "dict of ints": dict[int, str],
    "dict of UUIDs": dict[uuid.UUID, int],
    "dict of patterns": dict[Annotated[str, Meta(pattern="^x-[a-z]$")], int],
    "dict of lengths": dict[Annotated[str, Meta(min_length=2, max_length=3)], int],
    "TypedDict": Movie,
    "dataclass": Plain,
    "attrs": Made,
    "Union": int | str | list[bool],
    "Optional": int | None,
    "Struct": Base,
    "tagged Structs": Get | Put,
    "Struct as an array": Row,
    "closed Struct": Strict,
    "int with bounds": Annotated[int, Meta(gt=3, le=90, multiple_of=3)],
    "float with bounds": Annotated[float, Meta(ge=0.5, lt=1)],
    "str with lengths": Annotated[str, Meta(min_length=2, max_length=4)],
    "str with a pattern": Annotated[str, Meta(pattern=r"^\d{3}-\w+$")],
    "list with lengths": Annotated[list[int], Meta(min_length=1, max_length=2)],
    "dict with lengths": Annotated[dict[str, int], Meta(min_length=1, max_length=2)],
    "with notes": Annotated[int, Meta(title="T", description="D", examples=[1], extra_json_schema={"x-mood": 1})],
}


@dataclass(frozen=True)
class Typed:
    """A schema that a framework generated for a type; `read` raises ValueError for a text that is not of the type."""

    name: str
    schema: dict[str, Any]
    read: Callable[[str], Any]


def typed() -> Iterator[Typed]:
    """Yield the schemas of all types, in every mode of their framework."""
    for name, kind in PYDANTIC.items():
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        modes: tuple[Literal["validation", "serialization"], ...] = ("validation", "serialization")
        schemas = {mode: adapter.json_schema(mode=mode) for mode in modes}
        yield Typed(f"pydantic {name}", schemas["validation"], adapter.validate_json)
        if schemas["serialization"] != schemas["validation"]:
            yield Typed(f"pydantic {name}, written", schemas["serialization"], adapter.validate_json)
    for name, kind in MSGSPEC.items():
        yield Typed(f"msgspec {name}", msgspec.json.schema(kind), msgspec.json.Decoder(kind).decode)
