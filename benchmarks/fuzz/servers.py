"""The fuzzed servers: one that generates and stores files, one for vectors, one for labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fuzz.models import CONTEXT, KV_BYTES, write_classifier, write_embedder, write_generator
from fuzz.requests import CLASSIFIER, EMBEDDER, GENERATOR, MODEL
from soak.server import ServerProcess

POOL_TOKENS = 8 * CONTEXT
"""Small, so that sequences are preempted and cached prefixes evicted."""
WRITERS: Mapping[str, Callable[[Path], None]] = {
    GENERATOR: write_generator,
    EMBEDDER: write_embedder,
    CLASSIFIER: write_classifier,
}


@contextmanager
def running(folder: Path) -> Iterator[Mapping[str, ServerProcess]]:
    """Run all servers, with models and files in `folder`; stop those that still run at the end of the context."""
    with ExitStack() as stack:
        started: dict[str, ServerProcess] = {}
        for name, write in WRITERS.items():
            write(folder / name)
            started[name] = server = ServerProcess(str(folder / name), _options(name, folder))
            stack.callback(server.close)
            stack.callback(_stop, server)
        yield started


def _stop(server: ServerProcess) -> None:
    if server.alive:
        server.stop()


def _options(name: str, folder: Path) -> list[str]:
    options = ["--name", MODEL, "--kv-memory", str(POOL_TOKENS * KV_BYTES), "--threads", "1"]
    options += ["--max-model-len", str(CONTEXT), "--check-integrity-every", "50"]
    options += ["--policy", "priority"]
    if name != GENERATOR:
        return options
    # Limit stored responses, so that they do not count as memory growth.
    kept = ["--max-responses", "50", "--max-response-bytes", "4MiB"]
    return [*options, *kept, "--files-dir", str(folder / "files"), "--files-size", "64MiB"]
