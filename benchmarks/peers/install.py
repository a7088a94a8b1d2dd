"""`make bench-peers`: installs the peers of `make bench`. Can be repeated: existing parts are kept.

OpenVINO GenAI gets its own virtual environment. llama.cpp is built for this CPU from the sources in the source
distribution of `llama-cpp-python`; only packages are downloaded, from pip's configured index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers import places

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
LLAMA_CPP_PYTHON = "0.3.36"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)
SHOWN_LINES = 25


class StepFailed(RuntimeError):
    """A step of the installation failed; the message names it, with its last lines and its log."""


def main() -> int:
    """Install both peers. Return 1 and print the failing step's last lines if one cannot be installed."""
    args = _arguments()
    try:
        install_packages(again=args.again)
        build_llama_cpp(args.jobs, again=args.again)
    except StepFailed as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1
    print(f"The peers are in {places.home()}; `make bench` measures them.")
    return 0


def install_packages(*, again: bool = False) -> None:
    """Create the peers' virtual environment from `requirements.txt`, unless it is up to date or `again` is set."""
    stamp = places.home() / "venv" / ".requirements"
    wanted = REQUIREMENTS.read_text()
    if not again and stamp.is_file() and stamp.read_text() == wanted and places.has_openvino():
        print("OpenVINO GenAI: installed")
        return
    if not places.python().is_file():
        venv.create(places.home() / "venv", with_pip=True)
    _step("OpenVINO GenAI: installing", _pip("install", "--requirement", str(REQUIREMENTS)), "pip-install")
    stamp.write_text(wanted)


def build_llama_cpp(jobs: int, *, again: bool = False) -> None:
    """Compile `llama-server`, `llama-bench` and `llama-quantize` for this CPU, unless they are up to date or `again` is
    set.
    """
    stamp = places.stamp()
    if not again and stamp.is_file() and stamp.read_text() == LLAMA_CPP_PYTHON and places.has_llama_cpp():
        print("llama.cpp: installed")
        return
    with tempfile.TemporaryDirectory(dir=places.home(), prefix="build-") as scratch:
        sources, build = _sources(Path(scratch)), Path(scratch) / "build"
        tools = places.home() / "venv" / "bin"
        generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}")
        configure = [str(tools / "cmake"), "-S", str(sources), "-B", str(build), *generator, *OPTIONS]
        _step("llama.cpp: configuring", configure, "cmake")
        compile_it = ["nice", "-n", "19", str(tools / "cmake"), "--build", str(build), "--parallel", str(jobs)]
        _step(f"llama.cpp: compiling with {jobs} jobs", [*compile_it, "--target", *places.PROGRAMS], "build")
        places.program("").mkdir(exist_ok=True)
        for name in places.PROGRAMS:
            shutil.copy2(build / "bin" / name, places.program(name))
    stamp.write_text(LLAMA_CPP_PYTHON)


def _sources(scratch: Path) -> Path:
    """Return llama.cpp's tree, unpacked from the source distribution that contains it."""
    wanted = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
    command = _pip("download", "--no-deps", "--no-binary", ":all:", "--dest", str(scratch), wanted)
    _step(f"llama.cpp: fetching the sources ({wanted})", command, "pip-download")
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
        members = [m for m in archive if "/vendor/llama.cpp/" in m.name]
        archive.extractall(scratch, members=members, filter="data")
    return next(scratch.glob("*/vendor/llama.cpp"))


def _pip(*arguments: str) -> list[str]:
    return ["nice", "-n", "19", str(places.python()), "-m", "pip", "--disable-pip-version-check", *arguments]


def _step(title: str, command: list[str], log_name: str) -> None:
    """Run the command with its output in a log; on a terminal, show its last line as progress."""
    log = places.home() / "logs" / f"{log_name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start, live = time.monotonic(), sys.stdout.isatty()
    print(title, flush=True)
    with (
        log.open("w", buffering=1) as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if live:
                print(f"\r\033[K  {line.strip()[:100]}", end="", flush=True)
    print(f"{chr(13) + chr(27) + '[K' if live else ''}  {time.monotonic() - start:.0f} s", flush=True)
    if process.returncode:
        tail = "\n".join(log.read_text().splitlines()[-SHOWN_LINES:])
        raise StepFailed(f"{title} failed with exit status {process.returncode}.\n{tail}\nThe whole log: {log}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = min(2, len(os.sched_getaffinity(0)))
    parser.add_argument("--jobs", type=int, default=default, help=f"compilers at once (default {default})")
    parser.add_argument("--again", action="store_true", help="install existing parts again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
