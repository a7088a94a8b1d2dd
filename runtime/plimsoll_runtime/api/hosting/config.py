"""What a host's server is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from plimsoll_runtime.api.batches.options import BatchOptions
from plimsoll_runtime.api.door import Door
from plimsoll_runtime.api.hosting.models import KEEP_ALIVE_SECONDS
from plimsoll_runtime.api.responses.store import USUAL, Bounds
from plimsoll_runtime.residency.names import ModelName
from plimsoll_runtime.residency.spec import ModelSpec

HOST_PORT = 8100
TOKENS_VARIABLE = "PLIMSOLL_HOST_TOKENS"
"""The variable of the environment that may have hashes of tokens, instead of a file that has the tokens."""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Options of one host process.

    `host` and `port` are those of the OpenAI API, `host_address` and `host_port` those of the host API. That lets in
    the tokens of `host_token_file`, or of the hashes in its place (see `tokens.TokenHashes`). `models` are placed at
    the start. `keep_alive`: seconds after which a stream that waits for its model gets a comment. The rest is as in
    `ServerConfig`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    host_address: str = "127.0.0.1"
    host_port: int = HOST_PORT
    host_token_file: Path | None = None
    host_token_hashes: str = ""
    models: tuple[tuple[ModelName, ModelSpec], ...] = ()
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    door: Door = field(default_factory=Door)
    drain_seconds: float = 30.0
    keep_alive: float = KEEP_ALIVE_SECONDS
    termination_log: str | None = None
    share_prefix_cache: bool = False
    batches: BatchOptions | None = None
    gateway_tokens: tuple[str, ...] = ()
    gateway_token_file: Path | None = None
    response_store: Path | None = None
    response_bounds: Bounds = USUAL
