"""The measurements on a device, the most useful first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu.harness.part import Part

MEASURED: Mapping[str, tuple[int, str]] = {
    "attention": (240, "paged attention of one layer beside a copy and a product"),
    "candidates": (
        300,
        "prompts by every attention backend that runs here, ours beside them; what dividing a step costs",
    ),
    "decode": (240, "a decode of one sequence beside the copy"),
    "batches": (300, "decodes of 64 after 2,048 and of 256 after 1,024 beside their roofline"),
    "prefill": (240, "a prompt of 8,192 at once beside the product"),
    "chunks": (240, "the same in chunks of 2,048"),
    "idle": (400, "what the device idles in steady decoding of 32, and milliseconds between two steps"),
    "host": (470, "the same of 256, and of 128 after 32,000 shared tokens"),
    "sampling": (240, "choosing of 151,936 tokens, 1 and 256 rows, beside reading the logits once"),
    "mixed": (470, "256 mixed requests offline, beside Transformers' continuous batching and the roofline"),
    "users": (400, "64 users streaming through the server, beside offline use and the bound of their first tokens"),
    "latent": (200, "latent attention of one layer"),
    "experts": (200, "the products of a mixture's layer"),
    "memory": (470, "five minutes of random load on a full cache; memory beside what was predicted"),
    "sleep": (300, "waking of 16 GiB beside the copy of pinned memory"),
    "start": (420, 'seconds to the first token of "medium", with empty caches and with full ones'),
    "W1": (300, "one request, beside Transformers"),
    "W2": (300, "64 requests at once, beside Transformers"),
    "W3": (300, "64 requests with one prefix, beside Transformers"),
    "W4": (300, "64 users over HTTP, beside Transformers"),
}
"""Benchmarks of `gpu.run` and workloads of `serving.run --gpu`: time limit in seconds, and description."""


def parts(*arguments: str) -> Sequence[Part]:
    """Return a part for each; `arguments` are passed to its command (--rounds, --scale)."""
    return [
        Part(name, asked, seconds, ("-m", "gpu.run", "--only", name, "--json", "{json}", *arguments))
        for name, (seconds, asked) in MEASURED.items()
    ]
