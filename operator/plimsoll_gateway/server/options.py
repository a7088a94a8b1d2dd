"""The command line of the gateway."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plimsoll_cluster.keys import ObjectKey
from plimsoll_cluster.served_names.options import add_name_options
from plimsoll_cluster.served_names.rules import NameRules
from plimsoll_gateway.admission.body_memory import MOST_HELD, most_of_one
from plimsoll_gateway.admission.limits import BODY_BYTES, HOLD_SECONDS, MODEL_PATHS, WAKE_SECONDS, Limits
from plimsoll_gateway.admission.quota_sync.peer_addresses import BadAddressError, PeerAddress, read_address
from plimsoll_gateway.keys.limits import CLAIM
from plimsoll_gateway.server.cors import ORIGIN
from plimsoll_gateway.server.server import StopTimes
from plimsoll_gateway.telemetry.access_log import ACCESS_MODES, FIRST_ALIKE, AccessMode
from plimsoll_telemetry.log_format import FORMS, Form
from plimsoll_telemetry.settings import MOST_TRACES

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Peers:
    """The gateways that share the limits of keys, this one perhaps included; our own address; the secret's file."""

    addresses: tuple[PeerAddress, ...]
    own: PeerAddress
    secret_file: Path


@dataclass(frozen=True, slots=True)
class Options:
    """The gateway's options. `namespaces` None means all; unused if `table` is a file.

    `keys`: the folder of API keys; None for a gateway without them. Requires `gateway_token_file`. `peers`: None if no
    other gateway shares the limits of keys. `files_model`: the model whose replicas keep files and batches;
    `files_claim`: the PersistentVolumeClaim (NAMESPACE/CLAIM) that holds them; None for what ModelDeployments declare.
    `origins`: origins of web pages that may use the API. `name_rules`, `name_record`: which
    namespaces may use which served names.
    """

    table: Path | None
    namespaces: tuple[str, ...] | None
    name_rules: NameRules
    name_record: ObjectKey | None
    host: str
    port: int
    fd: int | None
    metrics_port: int | None
    keys: Path | None
    gateway_token_file: Path | None
    peers: Peers | None
    files_model: str | None
    files_claim: str | None
    origins: tuple[str, ...]
    limits: Limits
    stop: StopTimes
    traces_per_second: float
    access_log: AccessMode
    log_format: Form
    log_level: str


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line. Invalid options end the process with exit code 2 and a message."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.table is not None and (given.namespace or given.all_namespaces):
        parser.error("--table replaces the cluster; do not combine it with --namespace or --all-namespaces")
    if given.table is not None and (given.name_rules or given.name_record is not None):
        parser.error("--table has one owner for each name; do not combine it with --name-rule or --name-record")
    if given.namespace and given.all_namespaces:
        parser.error("--namespace and --all-namespaces are mutually exclusive")
    if given.files_model is not None and given.files_claim is not None:
        parser.error("--files-model and --files-claim are mutually exclusive")
    if given.keys is not None and given.gateway_token_file is None:
        parser.error(
            "--keys requires --gateway-token-file: without its credential the runtimes treat all keys as one tenant, "
            "and a key could infer another's prompts from response times"
        )
    namespaces = None if given.all_namespaces else tuple(given.namespace)
    if given.table is None and namespaces == ():
        namespaces = _own_namespace(parser)
    return Options(
        table=given.table,
        namespaces=namespaces,
        name_rules=NameRules(given.name_rules),
        name_record=given.name_record,
        host=given.host,
        port=given.port,
        fd=given.fd,
        metrics_port=given.metrics_port,
        keys=given.keys,
        gateway_token_file=given.gateway_token_file,
        peers=_peers(parser, given),
        files_model=given.files_model,
        files_claim=given.files_claim,
        origins=tuple(given.cors_origin),
        limits=_limits(parser, given),
        stop=StopTimes(given.lame_duck_seconds, given.drain_seconds),
        traces_per_second=given.traces_per_second,
        access_log=given.access_log,
        log_format=given.log_format,
        log_level=given.log_level.upper(),
    )


def _peers(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Peers | None:
    if not given.peers and given.peer_address is None and given.peer_secret_file is None:
        return None
    if given.keys is None:
        parser.error("--peers requires --keys: gateways share the limits of API keys")
    if not given.peers or given.peer_address is None or given.peer_secret_file is None:
        parser.error("--peers, --peer-address and --peer-secret-file require each other")
    return Peers(tuple(given.peers), given.peer_address, given.peer_secret_file)


def _limits(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Limits:
    """Return the limits. `--max-body-bytes N` is for all paths that name a model; `PATH=N` is for one path, and takes
    precedence in whichever order they are given.
    """
    body_bytes = dict(BODY_BYTES)
    for path, size in sorted(given.max_body_bytes, key=lambda pair: pair[0] is not None):
        body_bytes.update(dict.fromkeys(MODEL_PATHS if path is None else [path], size))
    largest = max(body_bytes[path] for path in MODEL_PATHS)
    if largest > most_of_one(given.max_held_bytes):
        parser.error(
            f"--max-body-bytes {largest} exceeds three quarters of --max-held-bytes {given.max_held_bytes} (a quarter "
            f"is reserved for small requests); lower the former, or raise the latter to {-(-largest * 4 // 3)} or more"
        )
    return Limits(
        body_bytes,
        given.max_held_bytes,
        given.max_waiting,
        given.hold_seconds,
        given.wake_seconds,
        given.max_connections,
    )


def _own_namespace(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    if not NAMESPACE_FILE.is_file():
        parser.error(
            "no namespace to watch: this is not a pod with a service account token; give --namespace NS, "
            "--all-namespaces or --table FILE"
        )
    return (NAMESPACE_FILE.read_text(encoding="utf-8").strip(),)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll-gateway",
        description="One OpenAI endpoint for every model of some namespaces, or of a table file.",
        allow_abbrev=False,
    )
    parser.add_argument("--namespace", action="append", default=[], metavar="NS", help="watch NS (repeatable)")
    parser.add_argument("--all-namespaces", action="store_true", help="watch the whole cluster")
    parser.add_argument("--table", type=Path, metavar="FILE", help="read the models from a file, without a cluster")
    add_name_options(parser)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on (%(default)s)")
    parser.add_argument("--fd", type=_descriptor, metavar="N", help="listen on this inherited socket instead")
    parser.add_argument(
        "--metrics-port", type=_port, metavar="N",
        help="serve /metrics on this port only (default: on the API's port)",
    )  # fmt: skip
    parser.add_argument(
        "--files-model", metavar="NAME",
        help="the model whose replicas answer /v1/files and /v1/batches; they share a folder (plimsoll serve "
        "--files-dir --files-shared). Default: models with spec.files; without any, these paths return 501",
    )  # fmt: skip
    parser.add_argument(
        "--files-claim", type=_claim, metavar="NAMESPACE/CLAIM",
        help="the claim for files and batches of keys whose file names no claim; overrides spec.files of models",
    )  # fmt: skip
    parser.add_argument(
        "--cors-origin", type=_origin, action="append", default=[], metavar="ORIGIN",
        help="an origin (https://chat.example.com) whose web pages may use the API (repeatable; * allows all)",
    )  # fmt: skip
    _add_keys_and_peers(parser)
    _add_limits(parser)
    parser.add_argument(
        "--lame-duck-seconds", type=_seconds, default=5.0, metavar="S",
        help="seconds to keep serving after SIGTERM, with /health failing (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--drain-seconds", type=_seconds, default=30.0, metavar="S",
        help="seconds after that for running requests to finish (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--traces-per-second", type=_traces, default=MOST_TRACES, metavar="N",
        help="most requests traced in a second, whatever callers ask for (%(default)s); the OTEL_* variables turn "
        "traces on",
    )  # fmt: skip
    parser.add_argument(
        "--access-log", choices=ACCESS_MODES, default="errors",
        help="errors: log each request that was refused or failed, or whose response broke off; of more than "
        f"{FIRST_ALIKE} alike within a minute the others are counted. all: log each request. off: none (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--log-format", choices=FORMS, default="text", help="json: one object for each line of the log (%(default)s)"
    )
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


def _add_keys_and_peers(parser: argparse.ArgumentParser) -> None:
    """Add the options of API keys, and of gateways that share their limits."""
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER",
        help="API keys, one JSON file each (plimsoll-gateway-key creates them); reloaded when they change. Default: "
        "requests need no key",
    )  # fmt: skip
    parser.add_argument(
        "--gateway-token-file", type=Path, metavar="FILE",
        help="the credential that proves to runtimes which tenant a request belongs to; the runtimes "
        "must have the same credential",
    )  # fmt: skip
    parser.add_argument(
        "--peers", type=_place, action="append", default=[], metavar="HOST:PORT",
        help="the gateways that share the limits of keys: each IP address that HOST resolves to is one gateway "
        "(repeatable; may include this one)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-address", type=_place, metavar="ADDRESS:PORT",
        help="the address at which this gateway listens for the others; their --peers must resolve to it",
    )  # fmt: skip
    parser.add_argument(
        "--peer-secret-file", type=Path, metavar="FILE",
        help="the secret that authenticates gateways to each other, one a line: the first is sent, all are accepted",
    )  # fmt: skip


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options of sizes and times."""
    parser.add_argument(
        "--max-body-bytes", type=_body_bytes, action="append", default=[], metavar="[PATH=]N",
        help="largest request body, of all paths that name a model or of one path (repeatable; defaults: 8388608; "
        "4194304 for embeddings, score, rerank, classify and /tokenize; 536870912 for /v1/files)",
    )  # fmt: skip
    parser.add_argument(
        "--max-held-bytes", type=_positive, default=MOST_HELD, metavar="N",
        help="most bytes of request bodies held until their responses begin; more are refused with 503 and "
        "Retry-After (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-waiting", type=_positive, default=0, metavar="N",
        help="most requests of one model that may wait for a response, whatever its replicas accept; more are "
        "refused with 503 and Retry-After (half of --max-connections)",
    )  # fmt: skip
    parser.add_argument(
        "--max-connections", type=_positive, default=0, metavar="N",
        help="most connections of clients; beyond it idle ones are closed, or if none is idle, new ones are refused "
        "with 503 (default: as many as fit in half of the memory limit at 64 KiB each, and in the open-files limit at "
        "2 files each)",
    )  # fmt: skip
    parser.add_argument(
        "--hold-seconds", type=_seconds, default=HOLD_SECONDS, metavar="S",
        help="seconds a streaming client waits for response headers while its model wakes; then they are sent, "
        "followed by comments until the response begins (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--wake-seconds", type=_seconds, default=WAKE_SECONDS, metavar="S",
        help="seconds a request may wait for a replica of a model that scales from zero or is moved; then 503 with "
        "Retry-After (%(default)s)",
    )  # fmt: skip


def _body_bytes(text: str) -> tuple[str | None, int]:
    path, equals, size = text.rpartition("=")
    if equals and path not in BODY_BYTES:
        raise argparse.ArgumentTypeError(f"{path[:64]!r} is not one of {', '.join(BODY_BYTES)}")
    return path or None, _positive(size)


def _claim(text: str) -> str:
    if CLAIM.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a claim; give NAMESPACE/NAME")
    return text


def _origin(text: str) -> str:
    if ORIGIN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text[:64]!r} is not an origin; give SCHEME://HOST[:PORT] in lower case without a path, or * for all"
        )
    return text


def _place(text: str) -> PeerAddress:
    try:
        return read_address(text)
    except BadAddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(text: str, low: int, high: int) -> int:
    if re.fullmatch("[0-9]{1,19}", text) is None or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number from {low} to {high}")
    return int(text)


_port = partial(_whole, low=0, high=65535)
_descriptor = partial(_whole, low=0, high=2**31 - 1)
_positive = partial(_whole, low=1, high=2**62)


def _number(text: str, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not {what} from 0 to {most:.0f}")
    return value


_seconds = partial(_number, most=86_400, what="a number of seconds")
_traces = partial(_number, most=1_000_000, what="a number of traces")
