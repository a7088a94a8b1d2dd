"""Packages that a device's machine lacks: finds them, downloads their wheels, and installs these.

`python -m gpu.harness.wheels FOLDER` downloads the wheels into the folder; it needs a network, and an environment with
the project's packages.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from gpu.harness.sources import ROOT

TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
"""Packages of the tests in addition to the runtime's."""
PRESENT = ("torch", "triton", "transformers", "numpy", "safetensors", "tokenizers", "huggingface-hub", "scipy")
"""Large packages that images for computing contain, with their dependencies: they are not downloaded."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
"""Platform tags of wheels to download. pip does not add compatible older tags by itself."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Run = Callable[[Sequence[str]], int]


def required(pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the packages that the runtime and its tests import, from the project's own list."""
    with pyproject.open("rb") as file:
        listed = tomllib.load(file)["project"]["optional-dependencies"]["runtime"]
    return sorted({*(normal(_name(each)) for each in listed), *TESTS})


def missing(names: Iterable[str]) -> list[str]:
    """Return those of the packages that are not installed here."""
    return [name for name in names if installed(name) is None]


def installed(name: str) -> str | None:
    """Return the version of a package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def install(folder: Path, target: Path, run: Run = subprocess.call) -> list[str]:
    """Install wheels of missing packages from a folder into `target`, and return their names. Raises ValueError if the
    folder has no wheels, or pip fails.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ValueError(f"{folder} has no wheels: `make gpu-wheels` downloads them on a machine with network access")
    wanted = [wheel for wheel in wheels if installed(_name(wheel.name.split("-")[0])) is None]
    if wanted:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        command += ["--find-links", str(folder), "--upgrade", "--target", str(target), *map(str, wanted)]
        if code := run(command):
            raise ValueError(f"pip ended with {code}: the wheels of {folder} are not installed")
    return [normal(wheel.name.split("-")[0]) for wheel in wanted]


def pins(names: Iterable[str], python: str) -> list[str]:
    """Return NAME==VERSION of these packages and their dependencies in this environment, without PRESENT ones."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    waiting = [Requirement(name) for name in names]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = normal(wanted.name)
        if name in PRESENT or all((name, extra) in seen for extra in ("", *wanted.extras)):
            continue
        seen.update((name, extra) for extra in ("", *wanted.extras))
        of = distribution(name)
        found[name] = of.version
        for text in of.requires or ():
            need = Requirement(text)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra, "python_version": python, "python_full_version": f"{python}.0"})
                for extra in ("", *wanted.extras)
            ):
                waiting.append(need)
    return [f"{name}=={found[name]}" for name in sorted(found)]


def download(folder: Path, python: str, run: Run = subprocess.call) -> int:
    """Download wheels of all packages that may be missing, for a Python on x86-64 Linux, and return pip's exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    command += [f"--platform={name}" for name in PLATFORMS]
    return run([*command, *pins(required(), python)])


def normal(name: str) -> str:
    """Return a package's normalised name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name(requirement: str) -> str:
    found = NAME.match(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} names no package")
    return found.group()


def main() -> int:
    """Download and return pip's exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("--python", default="3.12", help="the Python of the device's machine (default 3.12)")
    args = parser.parse_args()
    code = download(args.folder, args.python)
    wheels = list(args.folder.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(w.stat().st_size for w in wheels) / 2**20:.1f} MiB, in {args.folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
