"""`plimsoll-gateway-key NAME`: make an API key. The key is printed once; a file takes its hash and limits."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from plimsoll_gateway.keys.api_key import KeyFileError, KeyLimits, read_key
from plimsoll_gateway.keys.secret import digest_of, new_key


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print the key; the exit code is 1 where the file cannot be written, 2 for bad limits."""
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
        return _failed(f"{file} is there already; delete it, or add the hash of another key to it (docs/keys.md)")
    except OSError as error:
        return _failed(f"{file} cannot be written: {error.strerror}")
    print(f"{file} is written. The key, which is shown this once:", file=sys.stderr)  # noqa: T201
    print(key)  # noqa: T201
    return 0


def _encode(given: argparse.Namespace, key: str) -> bytes:
    limits = KeyLimits(
        hashes=(str(digest_of(key.encode())),),
        models=tuple(given.model or ["*"]),
        requests_per_minute=given.requests_per_minute,
        tokens_per_minute=given.tokens_per_minute,
        streams=given.streams,
        priority=given.priority,
        weight=given.weight,
        batches=given.batches,
        batch_share=given.batch_share,
        tenant=given.tenant,
        files=given.files,
    )
    fields = {name: value for name, value in msgspec.to_builtins(limits).items() if value is not None}
    return msgspec.json.format(msgspec.json.encode(fields)) + b"\n"


def _failed(why: str) -> int:
    print(f"plimsoll-gateway-key: {why}", file=sys.stderr)  # noqa: T201
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="plimsoll-gateway-key",
        description="Make an API key: its hash and limits go into NAME.json, the key itself to standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help="what the key is called in metrics and logs")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="where the file goes (default: here)"
    )
    parser.add_argument(
        "--model", action="append", metavar="PATTERN", help="served names that it is for (repeatable; default: *)"
    )
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="default: no limit")
    parser.add_argument("--tokens-per-minute", type=int, metavar="N", help="default: no limit")
    parser.add_argument("--streams", type=int, metavar="N", help="requests under way at once (default: no limit)")
    parser.add_argument(
        "--batches", type=int, metavar="N", help="batches open at once (default: 1 with limits, else 32)"
    )
    parser.add_argument(
        "--batch-share", type=int, default=0, metavar="PERCENT",
        help="how much of the limits is for batches; with limits and without a share there are none (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes first (%(default)s)")
    parser.add_argument("--weight", type=int, default=1, metavar="N", help="its share among equals (%(default)s)")
    parser.add_argument(
        "--tenant", metavar="NAME", help="share cached prefixes with keys of this tenant (default: none)"
    )
    parser.add_argument(
        "--files", metavar="NAMESPACE/CLAIM",
        help="the claim on which its files and batches are, whatever models say (default: the gateway chooses)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
