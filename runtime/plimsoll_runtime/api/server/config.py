"""What a server is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from plimsoll_runtime.api.responses.memory_store import USUAL, Bounds
from plimsoll_runtime.api.schemas.parts import ImageParts
from plimsoll_runtime.api.served_model import MAX_LOGIT_BIAS
from plimsoll_runtime.api.server.limits import BatchOptions, BodyLimits
from plimsoll_runtime.api.server.listener import ListenerOptions
from plimsoll_runtime.api.server.queue_limit import MAX_WAITING, MAX_WAITING_TOKENS
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.text.generation_config import GenerationConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontConfig:
    """Options of what faces clients, of a server of one model as of a host of many.

    `host` and `port` are those of the OpenAI API. `api_keys` empty and no `api_key_file` means open. `door`: TLS, web
    pages, the form of the log. `drain_seconds`: how long running requests may go on after SIGTERM. `termination_log`: a
    file that gets one line on a fatal error. `share_prefix_cache`: whether a request of one key may use what was
    computed for another's. `batches`: where files and batches are kept and how they are worked on; None where there are
    none. `gateway_tokens`, `gateway_token_file`: the credentials of gateways that may say whose a request is.
    `response_store`: the file in which responses are kept, None for the memory; `response_bounds`: how much of them.
    `body_limits`: how large the bodies of requests may be.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    door: ListenerOptions = field(default_factory=ListenerOptions)
    drain_seconds: float = 30.0
    termination_log: str | None = None
    share_prefix_cache: bool = False
    batches: BatchOptions | None = None
    gateway_tokens: tuple[str, ...] = ()
    gateway_token_file: Path | None = None
    response_store: Path | None = None
    response_bounds: Bounds = USUAL
    body_limits: BodyLimits = field(default_factory=BodyLimits)


@dataclass(frozen=True, slots=True)
class ServerConfig(FrontConfig):
    """Options of the process of a server of one model.

    `names` are what requests may call the model, the first one is what answers carry. `max_waiting`: how many answers
    may wait for their first token, `max_waiting_tokens`: how many tokens their prompts may have. `max_logit_bias`: how
    many token ids of a request may have one. `tool_format`: by its name, how the model writes calls of tools.
    `strict_parameters`: requests with fields that nothing here knows are refused. `reasoning_format`: by its name, how
    the model writes thoughts. `thinking_budget`: how many tokens the thoughts of an answer may have where its request
    does not say; None: as many as come. `image_parts`: what becomes of images. `generation_config`: whether the model's
    files say how requests are sampled that do not say it, "model" or "none". `findings_file`: gets what there is to say
    of the device.
    """

    engine: EngineConfig
    names: tuple[str, ...]
    max_waiting: int = MAX_WAITING
    max_waiting_tokens: int = MAX_WAITING_TOKENS
    max_logit_bias: int = MAX_LOGIT_BIAS
    tool_format: str | None = None
    strict_parameters: bool = False
    reasoning_format: str | None = None
    thinking_budget: int | None = None
    image_parts: ImageParts = "refuse"
    generation_config: GenerationConfigSource = "model"
    findings_file: Path | None = None


def default_name(model: str) -> str:
    """The name of a model when none is given: the id of a hub or demo model, else the file's or folder's name.

    >>> default_name("demo://gemma-3-270m"), default_name("org/model"), default_name("/models/claim/tiny.gguf")
    ('gemma-3-270m', 'org/model', 'tiny')
    """
    scheme, separator, rest = model.partition("://")
    if separator and scheme in ("hf", "demo"):
        return rest or model
    path = PurePosixPath(rest if separator else model)
    if path.suffix == ".gguf":
        return path.stem
    is_local = bool(separator) or path.is_absolute() or model.startswith((".", "~")) or len(path.parts) != 2
    return (path.name or model) if is_local else model
