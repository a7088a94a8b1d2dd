"""Builds the library of CPU kernels: `python -m plimsoll_kernels.cpu.compile`, and a step of building the wheel.

The library's name has a digest of its inputs, so one of other sources or records is never loaded. Each instruction set
is a file with its own flags; the library checks the processor, so one build serves every x86-64 machine. This module
and the records only import the standard library, because builds have nothing else.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plimsoll_kernels.cpu.records import interface

MOST_TEXT = 4000
"""The most characters of a compiler's output in an error."""
HERE = Path(__file__).parent
SOURCE = HERE / "source"
INTERFACE = "interface.h"
PREFIX = "libplimsoll_cpu-"
SEAL = hashlib.sha256().digest_size
FLAGS = (
    *(
        "-std=c++20",
        "-O3",
        "-fPIC",
        "-pthread",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-threadsafe-statics",
    ),
    *("-ffp-contract=fast", "-Wall", "-Wextra", "-Wno-psabi"),
)
INSTRUCTIONS = {
    "choose": (),
    "crew": (),
    # Their first call comes after the check for AVX2. Without FMA, so that sums are those of plain additions.
    "exchange": ("-mavx2",),
    "shared_exchange": ("-mavx2",),
    "tcp_exchange": ("-mavx2",),
    "avx2": ("-march=x86-64-v3",),
    "avx512": ("-march=x86-64-v4",),
    "avx512_bf16": ("-march=x86-64-v4", "-mavx512bf16"),
    "amx": ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}


class CompileError(Exception):
    """The library cannot be built here; the message says why."""


def library_path() -> Path:
    """Return the path of the library of these sources and flags, whether it exists or not."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + interface().encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return HERE / f"{PREFIX}{digest.hexdigest()[:16]}.so"


def unsupported() -> str | None:
    """Return why no compiler can build the library for this machine; None if one can."""
    machine = platform.machine()
    if sys.platform == "linux" and machine in ("x86_64", "AMD64"):
        return None
    return f"the CPU kernels need Linux on x86-64; this is {sys.platform} on {machine}"


def is_whole(library: Path) -> bool:
    """Return whether a library exists and is complete: loading a truncated one would kill the process.

    Raises OSError if it cannot be read.
    """
    if not library.is_file():
        return False
    content = library.read_bytes()
    return content[-SEAL:] == hashlib.sha256(content[:-SEAL]).digest()


def compile_library() -> Path:
    """Compile and link the library atomically, and delete older ones. Raises CompileError."""
    target = library_path()
    if reason := unsupported():
        raise CompileError(reason)
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, INTERFACE).write_text(interface())
        objects = {name: Path(folder) / f"{name}.o" for name in INSTRUCTIONS}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: _compile(compiler, name, objects[name]), INSTRUCTIONS))
        linked = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            _call([compiler, "-shared", "-pthread", "-o", str(linked), *map(str, objects.values())])
            _seal(linked)
            linked.replace(target)
        finally:
            linked.unlink(missing_ok=True)
    for other in HERE.glob(f"{PREFIX}*.so"):
        if other != target:
            other.unlink()
    return target


def _seal(library: Path) -> None:
    """Append a digest of the file, which loaders ignore."""
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())


def _compiler() -> str:
    wanted = os.environ.get("CXX", "g++")
    found = shutil.which(wanted)
    if found is None:
        raise CompileError(f"found no C++ compiler {wanted!r} (Debian: apt-get install g++; or set CXX)")
    return found


def _compile(compiler: str, name: str, target: Path) -> None:
    source = SOURCE / f"{name}.cpp"
    _call([compiler, *FLAGS, *INSTRUCTIONS[name], f"-I{target.parent}", "-c", str(source), "-o", str(target)])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if "error:" in line]  # g++ lists pages of candidates after each error
        said = "\n".join([*errors, "", *lines])[:MOST_TEXT]
        raise CompileError(f"{' '.join(command)} failed with exit code {done.returncode}:\n{said}")


def main() -> int:
    """Build the library unless it exists and is complete; return 1 if it cannot be built."""
    try:
        if not is_whole(library_path()):
            compile_library()
    except (CompileError, OSError) as error:
        sys.stderr.write(f"No CPU kernels; stock torch will compute instead: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
