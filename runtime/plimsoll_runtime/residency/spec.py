"""A model's name and spec, as the request that places it gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.utils.option import options_of
from plimsoll_runtime.utils.sizes import is_share, parse_size

if TYPE_CHECKING:
    from plimsoll_runtime.weights.sources.hub import Access

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LONGEST = 253


class ModelName(NamedTuple):
    """Compared and sorted by namespace, then name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """From "namespace/name". Raises UsageError for anything else."""
        namespace, _, name = text.partition("/")
        return cls.checked(namespace, name)

    @classmethod
    def checked(cls, namespace: str, name: str) -> ModelName:
        """From its parts. Raises UsageError where Kubernetes would not take one of them as a name."""
        for what, part in (("namespace", namespace), ("name", name)):
            if len(part) > _LONGEST or _LABEL.fullmatch(part) is None:
                raise UsageError(
                    f"the {what} {part[:_LONGEST]!r} is none: use up to {_LONGEST} of a-z, 0-9, '-' and '.', "
                    "with a letter or a digit first and last"
                )
        return cls(namespace, name)


LEAST_WEIGHT, MOST_WEIGHT, MOST_PRIORITY = 0.001, 1000.0, 1000
MOST_NAMES, LONGEST_TEXT = 64, 4096
MOST_THREADS = 1024


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """`revision` names the spec; `runtime` has the fields of a ModelDeployment's `spec.runtime`.

    `minimum_kv` is the least KV cache: bytes or an amount such as "512Mi". `token` is for private sources: "" for none
    at all, and without one the environment's is taken.
    """

    revision: str
    source: str
    model_revision: str | None = None
    served_names: tuple[str, ...] = ()
    runtime: dict[str, Any] = {}
    weight: float = 1.0
    priority: int = 0
    pinned: bool = False
    minimum_kv: str | int | None = None
    token: str | None = None

    def __repr__(self) -> str:
        """Without the token, which no log may have."""
        return f"ModelSpec(revision={self.revision!r}, source={self.source!r})"

    @property
    def needs_reload(self) -> tuple[object, ...]:
        """What an engine was started with: where it differs, another must take its place.

        Not the token: files that were fetched with another one are the same.
        """
        return (self.source, self.model_revision, sorted(self.runtime.items()), self.minimum_kv)


def decode_spec(data: bytes | Mapping[str, Any]) -> ModelSpec:
    """From JSON. Raises UsageError that says which field is wrong, and how it should be."""
    try:
        if isinstance(data, bytes):
            spec = msgspec.json.decode(data, type=ModelSpec)
        else:
            spec = msgspec.convert(data, ModelSpec)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UsageError(f"the spec of the model is wrong: {error}") from error
    check_spec(spec)
    return spec


def check_spec(spec: ModelSpec) -> None:
    """Raises UsageError for values that no model can have."""
    for field, text in (("revision", spec.revision), ("source", spec.source)):
        if not 0 < len(text) <= LONGEST_TEXT:
            raise UsageError(f"{field} must be a text of 1 to {LONGEST_TEXT} characters")
    if len(spec.served_names) > MOST_NAMES or not all(0 < len(name) <= LONGEST_TEXT for name in spec.served_names):
        raise UsageError(f"servedNames must be at most {MOST_NAMES} names of 1 to {LONGEST_TEXT} characters")
    if spec.token is not None and not re.fullmatch(f"[!-~]{{0,{LONGEST_TEXT}}}", spec.token):
        raise UsageError(f"token must be at most {LONGEST_TEXT} printable ASCII characters without spaces")
    check_weight(spec.weight)
    check_priority(spec.priority)
    least_kv(spec)
    engine_config(spec)


def check_weight(weight: float) -> None:
    """Raises UsageError for one that is out of bounds."""
    if not (math.isfinite(weight) and LEAST_WEIGHT <= weight <= MOST_WEIGHT):
        raise UsageError(f"weight must be from {LEAST_WEIGHT} to {MOST_WEIGHT:g}, not {weight}")


def check_priority(priority: int) -> None:
    """Raises UsageError for one that is out of bounds."""
    if abs(priority) > MOST_PRIORITY:
        raise UsageError(f"priority must be from {-MOST_PRIORITY} to {MOST_PRIORITY}, not {priority}")


def least_kv(spec: ModelSpec) -> int | None:
    """Bytes of the least KV cache that the spec asks for; None where the model's own least is enough."""
    text = spec.minimum_kv
    if text is None or isinstance(text, int):
        if text is not None and text <= 0:
            raise UsageError(f"minimumKv must be more than 0, not {text}")
        return text
    if is_share(text):
        raise UsageError(f"minimumKv is an amount such as 512Mi, and not a share ({text})")
    return parse_size(text, 0)


def access_of(name: ModelName, spec: ModelSpec) -> Access | None:
    """What its files are fetched with."""
    from plimsoll_runtime.weights.sources.hub import Access

    return None if spec.token is None else Access(name.namespace, spec.token)


def served_names(name: ModelName, spec: ModelSpec) -> tuple[str, ...]:
    """What requests may call it."""
    return spec.served_names or (name.name,)


@cache
def engine_fields() -> Mapping[str, str]:
    """The fields of `runtime` that configure the engine, each with its name in `EngineConfig`."""
    return {option.camel: option.name for option in options_of(EngineConfig, "host API")}


@cache
def server_fields() -> frozenset[str]:
    """Fields of `runtime` that are the server's business and not the engine's."""
    return frozenset({"drainSeconds", *(option.camel for option in options_of(ServingOptions))})


def engine_config(spec: ModelSpec) -> EngineConfig:
    """The engine's options. Raises UsageError for those that there are not, or that cannot be."""
    fields, known = engine_fields(), engine_fields().keys() | server_fields()
    if unknown := sorted(spec.runtime.keys() - known):
        raise UsageError(f"runtime has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    values = {fields[key]: value for key, value in spec.runtime.items() if key in fields}
    try:
        config = msgspec.convert({**values, "model": spec.source, "revision": spec.model_revision}, EngineConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"runtime is wrong: {error}") from error
    if config.threads is not None and config.threads > MOST_THREADS:
        raise UsageError(f"runtime.threads must be at most {MOST_THREADS}, not {config.threads}")
    return config
