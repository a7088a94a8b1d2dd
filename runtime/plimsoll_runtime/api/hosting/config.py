"""What a host's server is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.api.config import FrontConfig
from plimsoll_runtime.api.hosting.models import KEEP_ALIVE_SECONDS
from plimsoll_runtime.residency.spec import ModelName, ModelSpec

HOST_PORT = 8100
TOKENS_VARIABLE = "PLIMSOLL_HOST_TOKENS"
"""The variable of the environment that may have hashes of tokens, instead of a file that has the tokens."""


@dataclass(frozen=True, slots=True)
class HostConfig(FrontConfig):
    """Options of one host process.

    `host_address` and `host_port` are those of the host API. That lets in the tokens of `host_token_file`, or of the
    hashes in its place (see `tokens.TokenHashes`). `models` are placed at the start. `keep_alive`: seconds after which
    a stream that waits for its model gets a comment.
    """

    host_address: str = "127.0.0.1"
    host_port: int = HOST_PORT
    host_token_file: Path | None = None
    host_token_hashes: str = ""
    models: tuple[tuple[ModelName, ModelSpec], ...] = ()
    keep_alive: float = KEEP_ALIVE_SECONDS
