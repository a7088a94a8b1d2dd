"""The command line of the gateway."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
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

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Peers:
    """The other gateways: by which names they are found, where they find us, and the secret that all have."""

    addresses: tuple[PeerAddress, ...]
    own: PeerAddress
    secret_file: Path


@dataclass(frozen=True, slots=True)
class Options:
    """What a gateway is started with. `namespaces` None means all; unused where `table` names a file.

    `keys`: a folder of API keys, None for a gateway that is open; with it comes `gateway_token_file`. `peers` None:
    this gateway shares the limits of keys with no other. `files_model`: whose replicas keep files and batches,
    `files_claim`: on which claim they are, each None for what ModelDeployments say. `origins`: whose web pages may use
    the API. `name_rules` and `name_record` say which namespace may have which served name.
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
    log_level: str


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the process with 2 and the reason where it makes no sense."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.table is not None and (given.namespace or given.all_namespaces):
        parser.error("--table replaces the cluster: it does not go with --namespace or --all-namespaces")
    if given.table is not None and (given.name_rules or given.name_record is not None):
        parser.error("--table names one owner of each name: it does not go with --name-rule or --name-record")
    if given.namespace and given.all_namespaces:
        parser.error("--namespace and --all-namespaces contradict each other")
    if given.files_model is not None and given.files_claim is not None:
        parser.error("--files-model and --files-claim both say where files are: give one of them")
    if given.keys is not None and given.gateway_token_file is None:
        parser.error(
            "--keys needs --gateway-token-file: without the credential in it the runtimes take all keys for one "
            "tenant, and a key could learn from response times what another has asked"
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
        log_level=given.log_level.upper(),
    )


def _peers(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Peers | None:
    if not given.peers and given.peer_address is None and given.peer_secret_file is None:
        return None
    if given.keys is None:
        parser.error("--peers needs --keys: what gateways share are the limits of API keys")
    if not given.peers or given.peer_address is None or given.peer_secret_file is None:
        parser.error("--peers, --peer-address and --peer-secret-file need each other")
    return Peers(tuple(given.peers), given.peer_address, given.peer_secret_file)


def _limits(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Limits:
    """A limit for all that ask a model replaces their defaults, one for a single path replaces either, in any order."""
    body_bytes = dict(BODY_BYTES)
    for path, size in sorted(given.max_body_bytes, key=lambda pair: pair[0] is not None):
        body_bytes.update(dict.fromkeys(MODEL_PATHS if path is None else [path], size))
    largest = max(body_bytes[path] for path in MODEL_PATHS)
    if largest > most_of_one(given.max_held_bytes):
        parser.error(
            f"a request of --max-body-bytes {largest} does not fit in three quarters of --max-held-bytes "
            f"{given.max_held_bytes} (the last quarter is kept for small requests): "
            f"give {-(-largest * 4 // 3)} or more for the second, or less for the first"
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
        parser.error("say which models: --namespace NS, --all-namespaces or --table FILE")
    return (NAMESPACE_FILE.read_text(encoding="utf-8").strip(),)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll-gateway",
        description="One OpenAI endpoint for every model of some namespaces, or of a table file.",
        allow_abbrev=False,
    )
    parser.add_argument("--namespace", action="append", default=[], metavar="NS", help="watch NS (repeatable)")
    parser.add_argument("--all-namespaces", action="store_true", help="watch the whole cluster")
    parser.add_argument("--table", type=Path, metavar="FILE", help="take the models from a file, without a cluster")
    add_name_options(parser)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on (%(default)s)")
    parser.add_argument("--fd", type=_descriptor, metavar="N", help="listen on this inherited socket instead")
    parser.add_argument(
        "--metrics-port", type=_port, metavar="N",
        help="serve /metrics on this port alone (without it: on that of the API)",
    )  # fmt: skip
    parser.add_argument(
        "--files-model", metavar="NAME",
        help="whose replicas answer /v1/files and /v1/batches: they share a folder (plimsoll serve --files-dir "
        "--files-shared). Without it, those of models with spec.files; else 501",
    )  # fmt: skip
    parser.add_argument(
        "--files-claim", type=_claim, metavar="NAMESPACE/CLAIM",
        help="the claim of the files and batches of keys whose file names none, whatever other models say",
    )  # fmt: skip
    parser.add_argument(
        "--cors-origin", type=_origin, action="append", default=[], metavar="ORIGIN",
        help="an origin (https://chat.example.com) whose web pages may use the API (repeatable; * is all)",
    )  # fmt: skip
    _add_keys_and_peers(parser)
    _add_limits(parser)
    parser.add_argument(
        "--lame-duck-seconds", type=_seconds, default=5.0, metavar="S",
        help="serve on after SIGTERM with /health failing (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--drain-seconds", type=_seconds, default=30.0, metavar="S",
        help="then let running answers finish (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


def _add_keys_and_peers(parser: argparse.ArgumentParser) -> None:
    """Options of who may ask, and of the gateways that share the limits of keys."""
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER",
        help="API keys, one JSON file each (plimsoll-gateway-key makes them); read again when they change. Without it "
        "no key is needed",
    )  # fmt: skip
    parser.add_argument(
        "--gateway-token-file", type=Path, metavar="FILE",
        help="the credential by which runtimes believe whose a request is; they must have the same",
    )  # fmt: skip
    parser.add_argument(
        "--peers", type=_place, action="append", default=[], metavar="HOST:PORT",
        help="the other gateways, with which the limits of keys are shared: each address of the name is one "
        "(repeatable; our own may be among them)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-address", type=_place, metavar="ADDRESS:PORT",
        help="where this gateway listens for the others, as they find it by --peers",
    )  # fmt: skip
    parser.add_argument(
        "--peer-secret-file", type=Path, metavar="FILE",
        help="the secret by which gateways know each other; further lines are those that are taken beside the first",
    )  # fmt: skip


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Options of how much is held, and for how long."""
    parser.add_argument(
        "--max-body-bytes", type=_body_bytes, action="append", default=[], metavar="[PATH=]N",
        help="largest request of all paths that ask a model, or of one path (repeatable; 8388608, 4194304 where no "
        "text is generated and of /tokenize, 536870912 of a file)",
    )  # fmt: skip
    parser.add_argument(
        "--max-held-bytes", type=_positive, default=MOST_HELD, metavar="N",
        help="most bytes of requests held at once until their answers begin; more are refused with 503 and "
        "Retry-After (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-waiting", type=_positive, default=0, metavar="N",
        help="most requests of one model that may wait for an answer, whatever its replicas take; more are refused "
        "with 503 and Retry-After (half of --max-connections)",
    )  # fmt: skip
    parser.add_argument(
        "--max-connections", type=_positive, default=0, metavar="N",
        help="most connections of clients; beyond it idle ones are closed, and where none is, new ones are refused "
        "with 503 (as many as half of the memory limit is for, at 64 KiB each)",
    )  # fmt: skip
    parser.add_argument(
        "--hold-seconds", type=_seconds, default=HOLD_SECONDS, metavar="S",
        help="how long a streaming client may wait for the head of its answer while its model wakes; then it is sent, "
        "with comments until the answer begins (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--wake-seconds", type=_seconds, default=WAKE_SECONDS, metavar="S",
        help="how long a request may wait for a replica of a model that scales from zero, or is moved; 503 with "
        "Retry-After beyond (%(default)s)",
    )  # fmt: skip


def _body_bytes(text: str) -> tuple[str | None, int]:
    path, equals, size = text.rpartition("=")
    if equals and path not in BODY_BYTES:
        raise argparse.ArgumentTypeError(f"{path[:64]!r} is none of {', '.join(BODY_BYTES)}")
    return path or None, _positive(size)


def _claim(text: str) -> str:
    if CLAIM.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is no claim: give NAMESPACE/NAME")
    return text


def _origin(text: str) -> str:
    if ORIGIN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text[:64]!r} is no origin as browsers send it: give SCHEME://HOST[:PORT] in lower case without a path, "
            "or * for all"
        )
    return text


def _place(text: str) -> PeerAddress:
    try:
        return read_address(text)
    except BadAddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _descriptor(text: str) -> int:
    return _whole(text, 0, 2**31 - 1)


def _positive(text: str) -> int:
    return _whole(text, 1, 2**62)


def _whole(text: str, low: int, high: int) -> int:
    if re.fullmatch("[0-9]{1,19}", text) is None or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number from {low} to {high}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number of seconds from 0 to 86400")
    return value
