"""`plimsoll-gateway-key NAME`: create an API key. The key is printed once; a file stores its hash and limits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from plimsoll_gateway.keys.api_key import KeyFileError, KeyLimits, read_key
from plimsoll_gateway.keys.secret import digest_of, new_key


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print the key. Exit code 1: the file cannot be written; 2: bad limits."""
    parser = _parser()
    given = parser.parse_args(arguments)
    key = new_key()
    file: Path = given.into / f"{given.name}.json"
    content = _encode(given, key)
    try:
        read_key(f"{given.name}.json", content)
    except KeyFileError as error:
        parser.error(f"{error}")
    try:
        with file.open("xb") as made:
            made.write(content)
    except FileExistsError:
        return _failed(f"{file} exists; delete it, or add the hash of another key to it (docs/tasks/keys.md)")
    except OSError as error:
        return _failed(f"cannot write {file}: {error.strerror}")
    print(f"Wrote {file}. The key, which is shown only once:", file=sys.stderr)  # noqa: T201
    print(key)  # noqa: T201
    return 0


def _encode(given: argparse.Namespace, key: str) -> bytes:
    chosen = {name: value for name, value in vars(given).items() if value is not None and name not in ("name", "into")}
    limits = KeyLimits(hashes=(str(digest_of(key.encode())),), **chosen)
    fields = {name: value for name, value in msgspec.to_builtins(limits).items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(fields)) + b"\n"


def _failed(why: str) -> int:
    print(f"plimsoll-gateway-key: {why}", file=sys.stderr)  # noqa: T201
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll-gateway-key",
        description="Create an API key: write its hash and limits to NAME.json, and the key itself to standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="name of the key in metrics and logs")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="folder of the file (default: the current one)"
    )
    parser.add_argument(
        "--model",
        action="append",
        dest="models",
        metavar="PATTERN",
        help="served names the key may use (repeatable; default: *)",
    )
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="default: no limit")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="default: no limit")
    parser.add_argument("--streams", type=int, metavar="N", help="concurrent requests (default: no limit)")
    parser.add_argument(
        "--batches", type=int, metavar="N", help="the most open batches (default: 1 with limits, else 32)"
    )
    parser.add_argument(
        "--batch-share", type=int, default=0, metavar="PERCENT",
        help="part of the limits for batches; a key with limits and no share may not create batches (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first (%(default)s)")
    parser.add_argument(
        "--weight", type=int, default=1, metavar="N", help="its share among keys of equal priority (%(default)s)"
    )
    parser.add_argument(
        "--tenant", metavar="NAME", help="share cached prefixes with keys of this tenant (default: none)"
    )
    parser.add_argument(
        "--files", metavar="NAMESPACE/CLAIM",
        help="the claim for its files and batches, whatever models declare (default: the gateway chooses)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
