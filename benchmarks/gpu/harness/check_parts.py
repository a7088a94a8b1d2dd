"""The checks on a device, the most useful first."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.harness.part import Part

PARITY = "tests/parity"
TEXTS = ("test_texts.py", "test_tiers.py")
MIXTURES = ("test_mixtures.py", "test_recurrent.py", "test_quantised.py", "test_gguf_logits.py")
LOGITS = ("test_logits.py", "test_families.py", "test_cache_groups.py", "test_device.py")
COMPILED = {"TRITON_INTERPRET": "0"}
"""Compile Triton's kernels for the device."""
EXACT = {**COMPILED, "NVIDIA_TF32_OVERRIDE": "0"}
"""Never round float32 to TF32, whatever a library's default is."""


def _pytest(*arguments: str) -> Sequence[str]:
    """Return a pytest command. Warnings do not fail, because the machine's versions differ from those pinned for `make
    test`.
    """
    return (
        "-m",
        "pytest",
        "-q",
        "--continue-on-collection-errors",
        "-W",
        "default",
        "-p",
        "gpu_support.progress",
        *arguments,
    )


def _parity(name: str, proves: str, files: Sequence[str]) -> Part:
    return Part(name, proves, 470, _pytest(*(f"{PARITY}/{file}" for file in files)), tests=True, environment=EXACT)


def _group(name: str, proves: str) -> Part:
    return Part(name, proves, 470, ("-m", "gpu.groups", name, "--json", "{json}"), environment=EXACT)


PARTS = (
    Part(
        "environment",
        "driver, device, versions, memory, importable and missing packages",
        120,
        ("-m", "gpu.environment", "--json", "{json}"),
        needs=False,
    ),
    Part(
        "kernels",
        "each Triton kernel computes what its reference computes",
        450,
        _pytest("-m", "gpu", "tests/unit/benchmarks/test_gpu.py::test_small_ops", "tests/unit/kernels"),
        tests=True,
        environment=COMPILED,
    ),
    Part(
        "execution",
        "graphs, tiers, cache, attention packages, images and timers on the device",
        450,
        _pytest("-m", "gpu", "tests/unit/execution", "tests/unit/models", "tests/unit/driver", "tests/unit/profiling"),
        tests=True,
        environment=COMPILED,
    ),
    _parity("texts", "texts do not depend on graphs, overlap, chunks, prefix hits, preemption or tiers", TEXTS),
    _parity("parity", "logits of dense families equal Transformers', float32 and bfloat16", LOGITS),
    _parity("parity-mixtures", "logits of mixtures, recurrent and quantised models equal Transformers'", MIXTURES),
    Part(
        "parity-others",
        "Transformers' own code on our cache, embeddings, rerankers, adapters",
        470,
        _pytest(PARITY, *(f"--ignore={PARITY}/{file}" for file in (*TEXTS, *MIXTURES, *LOGITS))),
        tests=True,
        environment=EXACT,
    ),
    Part(
        "catalogue",
        "which attention backends run, and how long each takes",
        240,
        ("-m", "gpu.catalogue", "--json", "{json}"),
        environment=COMPILED,
    ),
    _group("group-1", "on one GPU: two ranks over gloo, and one rank over NCCL from its start to its end"),
    _group("group-n", "with two or more GPUs: ranks over NCCL: texts, graphs, kills and hangs, times of sums"),
    Part(
        "sanitizer",
        "no op reads or writes outside its tensors (compute-sanitizer, one small case an op)",
        470,
        ("-m", "gpu.sanitizer", "--json", "{json}"),
        environment=COMPILED,
    ),
)
