"""What an engine's process is told before anything else: one line of JSON on its standard input."""

from __future__ import annotations

import msgspec

from plimsoll_runtime.engine.config import EngineConfig

BUILD = "plimsoll_runtime.driver.build:build_engine"


class Start(msgspec.Struct, frozen=True):
    """Where the sockets are, who the parent is, and what to build.

    `pulse` is the descriptor of a page that the process inherits (see `pulse`).
    `factory` is "module:function"; the function makes an `EngineCore` of a config and a progress callback.
    """

    config: EngineConfig
    factory: str
    commands: str
    events: str
    pulse: int
    parent: int
    log_level: int
