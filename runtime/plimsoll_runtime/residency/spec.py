"""A model's name and spec, as a place operation has them."""

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
    """A model's namespace and name; compared and sorted in this order."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse "namespace/name". Raises UsageError for anything else."""
        namespace, _, name = text.partition("/")
        return cls.checked(namespace, name)

    @classmethod
    def checked(cls, namespace: str, name: str) -> ModelName:
        """Return a name of these parts. Raises UsageError if one is not a valid Kubernetes name."""
        for what, part in (("namespace", namespace), ("name", name)):
            if len(part) > _LONGEST or _LABEL.fullmatch(part) is None:
                raise UsageError(
                    f"the {what} {part[:_LONGEST]!r} is invalid; use up to {_LONGEST} of a-z, 0-9, '-' and '.', "
                    "with a letter or a digit first and last"
                )
        return cls(namespace, name)


LEAST_WEIGHT, MOST_WEIGHT, MOST_PRIORITY = 0.001, 1000.0, 1000
MOST_NAMES, LONGEST_TEXT = 64, 4096
MOST_THREADS = 1024


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The spec of a model. `revision` identifies this spec, `model_revision` is that of the source. `runtime` has the
    fields of a ModelDeployment's `spec.runtime`.

    `minimum_kv`: smallest KV cache, in bytes or as an amount such as "512Mi". `token`: for private sources; "": use
    none; None: use the environment's.
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
        """Omit the token, which must not be logged."""
        return f"ModelSpec(revision={self.revision!r}, source={self.source!r})"

    @property
    def needs_reload(self) -> tuple[object, ...]:
        """The parts of the spec for which an engine must be restarted if they change.

        The token is not one: files fetched with another token are the same.
        """
        return (self.source, self.model_revision, sorted(self.runtime.items()), self.minimum_kv)


def decode_spec(data: bytes | Mapping[str, Any]) -> ModelSpec:
    """Parse a spec from JSON. Raises UsageError that says which field is wrong, and what it should be."""
    try:
        if isinstance(data, bytes):
            spec = msgspec.json.decode(data, type=ModelSpec)
        else:
            spec = msgspec.convert(data, ModelSpec)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UsageError(f"the spec of the model is invalid: {error}") from error
    check_spec(spec)
    return spec


def check_spec(spec: ModelSpec) -> None:
    """Raise UsageError for invalid values."""
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
    """Raise UsageError for a weight out of bounds."""
    if not (math.isfinite(weight) and LEAST_WEIGHT <= weight <= MOST_WEIGHT):
        raise UsageError(f"weight must be from {LEAST_WEIGHT} to {MOST_WEIGHT:g}, not {weight}")


def check_priority(priority: int) -> None:
    """Raise UsageError for a priority out of bounds."""
    if abs(priority) > MOST_PRIORITY:
        raise UsageError(f"priority must be from {-MOST_PRIORITY} to {MOST_PRIORITY}, not {priority}")


def least_kv(spec: ModelSpec) -> int | None:
    """Return the bytes of the spec's minimum KV cache; None: the model's own minimum."""
    text = spec.minimum_kv
    if text is None or isinstance(text, int):
        if text is not None and text <= 0:
            raise UsageError(f"minimumKv must be more than 0, not {text}")
        return text
    if is_share(text):
        raise UsageError(f"minimumKv must be an amount such as 512Mi, not a share ({text})")
    return parse_size(text, 0)


def access_of(name: ModelName, spec: ModelSpec) -> Access | None:
    """Return the credentials for fetching the model's files; None: the environment's."""
    from plimsoll_runtime.weights.sources.hub import Access

    return None if spec.token is None else Access(name.namespace, spec.token)


def served_names(name: ModelName, spec: ModelSpec) -> tuple[str, ...]:
    """Return the names by which requests ask for the model."""
    return spec.served_names or (name.name,)


@cache
def engine_fields() -> Mapping[str, str]:
    """Return the fields of `runtime` that configure the engine, each with its name in `EngineConfig`."""
    return {option.camel: option.name for option in options_of(EngineConfig, "host API")}


@cache
def server_fields() -> frozenset[str]:
    """Return the fields of `runtime` that configure the server and not the engine."""
    return frozenset({"drainSeconds", *(option.camel for option in options_of(ServingOptions))})


def engine_config(spec: ModelSpec) -> EngineConfig:
    """Return the engine's options. Raises UsageError for unknown or invalid ones."""
    fields, known = engine_fields(), engine_fields().keys() | server_fields()
    if unknown := sorted(spec.runtime.keys() - known):
        raise UsageError(f"runtime has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    values = {fields[key]: value for key, value in spec.runtime.items() if key in fields}
    try:
        config = msgspec.convert({**values, "model": spec.source, "revision": spec.model_revision}, EngineConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"runtime is invalid: {error}") from error
    if config.threads is not None and config.threads > MOST_THREADS:
        raise UsageError(f"runtime.threads must be at most {MOST_THREADS}, not {config.threads}")
    return config
