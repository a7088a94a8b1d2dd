"""`python -m gpu.environment`: prints the available hardware and software, one line each; exits with 1 if something
required is missing.

At first it imports only Python's standard library, so that each missing import is a line of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu.harness import wheels

IMPORTED = ("plimsoll_kernels", "plimsoll_runtime", "triton")
"""Packages that must be importable; others must only be installed."""
TOOLS = ("nvidia-smi", "rocm-smi", "compute-sanitizer", "nvcc", "ncu")
"""Useful, optional programs."""
OPTIONAL = ("flashinfer-python", "flash-attn-3", "flash-attn", "pytest-xdist", "rich", "sentence-transformers")
ASKED = "name,driver_version,memory.total,memory.used,mig.mode.current,ecc.mode.current"
PINNED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """Something present (`state` is "ok"), required but missing ("MISSING"), or optional and missing ("absent")."""

    name: str
    says: str
    state: str = "ok"

    def __str__(self) -> str:
        return f"{self.state:<8} {self.name}: {self.says}"


def main() -> int:
    """Return 0 if all requirements of the checks are present, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    lines = [*of_host(), *of_packages(), *of_imports(), *of_driver(), *of_device()]
    for line in lines:
        print(line)
    lacking = [line.name for line in lines if line.state == "MISSING"]
    print(f"missing: {', '.join(lacking)}" if lacking else "nothing is missing")
    if args.json:
        args.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", encoding="utf-8")
    return 1 if lacking else 0


def of_host() -> list[Line]:
    """Return lines about the machine without its device."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [
        Line("python", f"{platform.python_version()} at {sys.executable}"),
        Line("kernel", platform.release()),
        Line("cores", str(len(os.sched_getaffinity(0)))),
        Line("host memory", f"{pages / 2**30:.1f} GiB"),
        Line("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "not set")),
        *(
            Line(tool, path) if (path := shutil.which(tool)) else Line(tool, "not on the PATH", "absent")
            for tool in TOOLS
        ),
    ]


def of_packages() -> list[Line]:
    """Return versions of packages that runtime and tests need, and of optional ones."""
    lines = []
    for name in (*wheels.required(), *OPTIONAL):
        found = wheels.installed(name)
        absent = "absent" if name in OPTIONAL else "MISSING"
        lines.append(Line(name, found) if found else Line(name, "not installed", absent))
    return lines


def of_imports() -> list[Line]:
    """Return whether the project's packages and Triton can be imported."""
    return [_tried(name, partial(_imported, name)) for name in IMPORTED]


def of_driver(run: Callable[[Sequence[str]], str] | None = None) -> list[Line]:
    """Return lines from nvidia-smi, [] if it is not installed."""
    if run is None and shutil.which("nvidia-smi") is None:
        return []
    ask = run or _output
    return [
        _tried("nvidia-smi", lambda: ask(["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"])),
        _tried(
            "processes on the device",
            lambda: ask(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]) or "none",
        ),
    ]


def of_device() -> list[Line]:
    """Return the device as torch reports it, and whether it supports the runtime's operations."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - the line shows every import failure
        return [Line("torch", f"cannot be imported: {error!r}", "MISSING")]
    lines = [Line("torch", f"{torch.__version__}, CUDA {torch.version.cuda}, HIP {torch.version.hip}")]
    if not torch.cuda.is_available():
        return [*lines, Line("device", "torch sees no CUDA or ROCm device", "MISSING")]
    found: Any = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    bf16 = torch.cuda.is_bf16_supported()
    return [
        *lines,
        Line("device", f"{found.name}, {torch.cuda.device_count()} seen, capability {found.major}.{found.minor}"),
        Line("multiprocessors", str(found.multi_processor_count)),
        Line("device memory", f"{free / 2**30:.2f} of {total / 2**30:.2f} GiB free"),
        Line("bfloat16", "yes" if bf16 else "the device has none", "ok" if bf16 else "MISSING"),
        Line("TF32 for float32 products", "on" if torch.backends.cuda.matmul.allow_tf32 else "off"),
        _tried("pinned memory", lambda: str(_copied_back(torch))),
        _tried("a graph", lambda: str(_replayed(torch))),
    ]


def _tried(name: str, work: Callable[[], str]) -> Line:
    try:
        return Line(name, work())
    except Exception as error:  # noqa: BLE001 - the line shows every failure
        return Line(name, f"{type(error).__name__}: {error}", "MISSING")


def _imported(name: str) -> str:
    return str(getattr(importlib.import_module(name), "__version__", "can be imported"))


def _output(command: Sequence[str]) -> str:
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return "; ".join(found.stdout.strip().splitlines())


def _copied_back(torch: Any) -> str:
    host = torch.ones(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    same = bool((host.to("cuda", non_blocking=True).cpu() == host).all())
    if not same:
        raise RuntimeError("data copied to the device and back has changed")
    return "can be allocated and copied"


def _replayed(torch: Any) -> str:
    numbers = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = numbers + 1
    numbers.fill_(2)
    graph.replay()
    if out.tolist() != [3.0] * 4:
        raise RuntimeError(f"a replay gave {out.tolist()}")
    return "can be captured and replayed"


if __name__ == "__main__":
    sys.exit(main())
