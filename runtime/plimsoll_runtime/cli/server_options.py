"""The command line's options of a server, the same for one model and for many."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll_runtime.api.responses.memory_store import USUAL, Bounds
from plimsoll_runtime.api.server.limits import (
    BODY_BYTES,
    FILES_BYTES,
    LINES_AT_ONCE,
    OPTION,
    VARIABLE,
    BatchOptions,
    BodyLimits,
    limits_with,
)
from plimsoll_runtime.cli import values
from plimsoll_runtime.errors import UsageError

if TYPE_CHECKING:
    from plimsoll_runtime.api.server.listener import ListenerOptions

DAY_SECONDS = 86_400.0


def add_server_options(group: argparse._ArgumentGroup) -> None:
    """Add where it listens, whom it lets in and how it drains."""
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=values.port, default=8000, help="port, 0 for any (default: %(default)s)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        type=values.word,
        metavar="K",
        help="a key that requests must carry; repeat for more. Everybody on the machine can read it in the list of "
        "processes: better is --api-key-file, or PLIMSOLL_API_KEY in the environment (comma separated)",
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="a file of such keys, one a line; read again when it changes"
    )
    group.add_argument(
        "--tls-certificate",
        type=Path,
        metavar="FILE",
        help="serve HTTPS with this certificate (PEM, with its chain); read again when it changes",
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key (PEM)")
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        type=values.word,
        metavar="ORIGIN",
        help="an origin (https://chat.example.com) whose web pages may use the API; repeat for more, '*' for all",
    )
    group.add_argument(
        OPTION,
        type=_path_and_size,
        action="append",
        default=[],
        metavar="[PATH=]SIZE",
        help="largest body of requests that ask a model, or of one path; repeat for more, or PLIMSOLL_MAX_BODY_BYTES "
        "in the environment, with commas (default: 32MiB, 16MiB where nothing is generated, 8MiB for /tokenize and "
        "/detokenize, 512MiB for a file)",
    )
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="json: an object a line (default: %(default)s)"
    )
    group.add_argument(
        "--gateway-token-file",
        type=Path,
        metavar="FILE",
        help="the credential of a gateway, one a line: whoever sends it in x-plimsoll-gateway needs no API key and "
        "says in x-plimsoll-tenant whose request it is. Read again when it changes; or PLIMSOLL_GATEWAY_TOKEN in the "
        "environment",
    )
    group.add_argument(
        "--share-prefix-cache",
        action="store_true",
        help="let requests of different API keys use each other's cached prefixes. Saves computing where they have "
        "long prompts in common, but cached_tokens and response times then tell one key what another has sent "
        "(default: each key has its own)",
    )
    group.add_argument(
        "--drain-seconds",
        type=values.seconds,
        default=30.0,
        metavar="S",
        help="how long running requests may go on after SIGTERM (default: %(default)g)",
    )


def add_response_options(group: argparse._ArgumentGroup) -> None:
    """Add where responses are kept, and how many of them."""
    group.add_argument(
        "--response-store",
        type=Path,
        metavar="FILE",
        help="a SQLite file in which responses (/v1/responses) are kept; made where there is none, and of one server "
        "at a time (default: in memory, until the server ends)",
    )
    group.add_argument(
        "--max-responses",
        type=values.positive,
        default=USUAL.count,
        metavar="N",
        help="how many responses are kept; what was used least recently goes first, of tenants who have more than an "
        "even share (default: %(default)s)",
    )
    group.add_argument(
        "--max-response-bytes",
        type=values.amount,
        default=USUAL.bytes,
        metavar="SIZE",
        help="how many bytes they may have together (default: 64MiB)",
    )
    group.add_argument(
        "--response-tenant-share",
        type=values.share,
        default="100%",
        metavar="SHARE",
        help="how much of both one tenant may have, such as 50%% (default: all that nobody else needs)",
    )
    group.add_argument(
        "--response-days",
        type=values.positive,
        default=round(USUAL.seconds / DAY_SECONDS),
        metavar="DAYS",
        help="how long after its last use a response is kept (default: %(default)s)",
    )


def response_bounds(args: argparse.Namespace) -> Bounds:
    """How much is kept of responses."""
    seconds = args.response_days * DAY_SECONDS
    return Bounds(args.max_responses, args.max_response_bytes, seconds, args.response_tenant_share)


def add_batch_options(group: argparse._ArgumentGroup) -> None:
    """Add where files and batches are kept."""
    group.add_argument(
        "--files-dir",
        type=Path,
        metavar="DIR",
        help="a folder for /v1/files and /v1/batches, else PLIMSOLL_FILES_DIR in the environment; without one they "
        "answer 501",
    )
    group.add_argument(
        "--files-shared",
        action="store_true",
        help="the folder is shared with other servers (one PersistentVolumeClaim), or PLIMSOLL_FILES_SHARED=1 in the "
        "environment: each works on the batches of its own models",
    )
    group.add_argument(
        "--files-size",
        type=values.amount,
        default=FILES_BYTES,
        metavar="SIZE",
        help="how much all files may take (default: 10GiB)",
    )
    group.add_argument(
        "--batch-lines",
        type=values.positive,
        default=LINES_AT_ONCE,
        metavar="N",
        help="most lines of batches that are answered at once, a quarter of it while clients' requests are in flight "
        "(default: %(default)s)",
    )


def batch_options(args: argparse.Namespace) -> BatchOptions | None:
    """What they say; None where there is no folder."""
    folder = args.files_dir or os.environ.get("PLIMSOLL_FILES_DIR", "")
    if not folder:
        return None
    shared = args.files_shared or os.environ.get("PLIMSOLL_FILES_SHARED") == "1"
    return BatchOptions(Path(folder), shared, args.files_size, args.batch_lines)


def api_keys(args: argparse.Namespace) -> tuple[str, ...]:
    """All keys of the command line and the environment, each once."""
    keys = [*args.api_key, *(k.strip() for k in os.environ.get("PLIMSOLL_API_KEY", "").split(",") if k.strip())]
    return tuple(dict.fromkeys(keys))


def door(args: argparse.Namespace) -> ListenerOptions:
    """How the server meets those who come. Raises UsageError."""
    from plimsoll_runtime.api.server.listener import ListenerOptions

    if (args.tls_certificate is None) != (args.tls_key is None):
        raise UsageError("--tls-certificate and --tls-key go together: give both, or none")
    return ListenerOptions(args.tls_certificate, args.tls_key, tuple(args.cors_origin), args.log_format)


def body_limits(args: argparse.Namespace) -> BodyLimits:
    """How large bodies may be: as the command line says, else the environment. Raises UsageError."""
    given = [part.strip() for part in os.environ.get(VARIABLE, "").split(",") if part.strip()]
    try:
        return limits_with([*map(_path_and_size, given), *args.max_body_bytes])
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{VARIABLE}: {error}") from None


def _path_and_size(text: str) -> tuple[str | None, int]:
    path, equals, size = text.rpartition("=")
    if equals and path not in BODY_BYTES:
        raise argparse.ArgumentTypeError(f"{path[:64]!r} is none of {', '.join(BODY_BYTES)}")
    if (most := values.amount(size)) < 1:
        raise argparse.ArgumentTypeError("a body has one byte at least; write an amount like 2MiB")
    return path or None, most


def gateway_tokens() -> tuple[str, ...]:
    """The credential of the environment, if there is one. Raises UsageError for one that is too short or no word."""
    given = os.environ.get("PLIMSOLL_GATEWAY_TOKEN", "").strip()
    if given and not re.fullmatch("[!-~]{16,256}", given):
        raise UsageError("PLIMSOLL_GATEWAY_TOKEN must be 16 to 256 printable ASCII characters without spaces")
    return (given,) if given else ()


def termination_log() -> str | None:
    """The file that gets one line on a fatal error, where the environment names one."""
    return os.environ.get("PLIMSOLL_TERMINATION_LOG") or None


def findings_file() -> Path | None:
    """The file that gets what there is to say of the device, where the environment names one."""
    given = os.environ.get("PLIMSOLL_FINDINGS")
    return Path(given) if given else None
