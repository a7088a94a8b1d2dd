"""llama.cpp's server, with its own continuous batching over 16 slots."""

from __future__ import annotations

from peers import places
from serving.http_load import HttpServer
from serving.models import Shape

SLOTS, SLOT_TOKENS = 16, 1024
CONNECTIONS = 80
"""HTTP threads, one per connection: more than any workload has users."""


class LlamaServer(HttpServer):
    """`llama-server` with a GGUF in bfloat16. More slots than 16 were slower on the machines measured so far."""

    def __init__(self, shape: Shape, model: str, threads: int) -> None:
        command = [str(places.program("llama-server")), "--model", model, "--alias", self.model]
        command += ["--threads", str(threads), "--threads-batch", str(threads)]
        command += ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS)]
        super().__init__([*command, "--threads-http", str(CONNECTIONS), "--cache-ram", "1024", "--host", "127.0.0.1"])
