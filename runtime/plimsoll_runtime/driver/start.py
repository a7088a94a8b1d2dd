"""What an engine's process is told on its standard input, and what it says there before it is an engine.

One line of JSON each. A process that stands by may be asked what models would take; `Start` is the last that it is
told there, and the descriptor of an image travels with it.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from plimsoll_runtime.driver.grant import Grant
from plimsoll_runtime.driver.needs import Needs
from plimsoll_runtime.engine.config import EngineConfig

BUILD = "plimsoll_runtime.driver.build:build_engine"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Where the sockets are, and what to build.

    Descriptors come along: of a page (see `pulse`), and of an image where `has_image` says so.
    `factory` is "module:function"; the function makes an `EngineCore` of a config and a progress callback. It gets
    `image` and `grant` by these names where they are given.
    """

    config: EngineConfig
    factory: str
    commands: str
    events: str
    parent: int
    log_level: int
    has_image: bool = False
    grant: Grant | None = None

    @property
    def descriptors(self) -> int:
        """How many come along."""
        return 1 + self.has_image


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Import what `Start.factory` will name, while the rest is not known yet; there is no reply."""

    descriptors: ClassVar[int] = 0
    factory: str


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Say what a model would take with so much KV cache for good (see `measure`)."""

    descriptors: ClassVar[int] = 0
    config: EngineConfig
    kv: int | None


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """To a fork server alone: fork a process whose standard input is the socket that comes along."""

    descriptors: ClassVar[int] = 1


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """There is such a process, and its parent is the fork server's."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process has imported everything."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """What was asked for cannot be; `kind` is an errors.ErrorKind. `device_lost`: nor can it in another process."""

    kind: str
    message: str
    device_lost: bool = False


Order = Start | Prepare | Measure | Fork
Reply = Ready | Needs | Forked | Refused
