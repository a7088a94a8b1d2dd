"""The measurements on a device, the most useful first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu.harness.part import Part

MEASURED: Mapping[str, tuple[int, str]] = {
    "attention": (240, "paged attention of one layer, compared with a copy and a product"),
    "candidates": (
        300,
        "prompts by every available attention backend; the cost of splitting a step between two backends",
    ),
    "decode": (240, "a decode of one sequence, compared with the copy"),
    "batches": (300, "decodes of 64 after 2,048 and of 256 after 1,024, compared with their roofline"),
    "prefill": (240, "a prompt of 8,192 at once, compared with the product"),
    "chunks": (240, "a prompt of 8,192 in chunks of 2,048"),
    "idle": (400, "idle time of the device in steady decoding of 32 sequences, and milliseconds between two steps"),
    "host": (470, "idle time of the device in decoding of 256 sequences, and of 128 after 32,000 shared tokens"),
    "sampling": (240, "sampling from 151,936 tokens, 1 and 256 rows, compared with reading the logits once"),
    "mixed": (470, "256 mixed requests offline, compared with Transformers' continuous batching and the roofline"),
    "users": (400, "64 users streaming through the server, compared with offline use and the bound of first tokens"),
    "latent": (200, "latent attention of one layer"),
    "experts": (200, "the products of a mixture-of-experts layer"),
    "memory": (470, "five minutes of random load on a full cache; memory compared with the prediction"),
    "sleep": (300, "waking of 16 GiB, compared with the copy of pinned memory"),
    "start": (420, 'seconds to the first token of "medium", with empty caches and with full ones'),
    "W1": (300, "one request, compared with Transformers"),
    "W2": (300, "64 requests at once, compared with Transformers"),
    "W3": (300, "64 requests with one prefix, compared with Transformers"),
    "W4": (300, "64 users over HTTP, compared with Transformers"),
}
"""Benchmarks of `gpu.run` and workloads of `serving.run --gpu`: time limit in seconds, and description."""


def parts(*arguments: str) -> Sequence[Part]:
    """Return a part for each benchmark in MEASURED; `arguments` are passed to its command (--rounds, --scale)."""
    return [
        Part(name, asked, seconds, ("-m", "gpu.run", "--only", name, "--json", "{json}", *arguments))
        for name, (seconds, asked) in MEASURED.items()
    ]
