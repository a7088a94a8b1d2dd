"""`python -m kernel_support.ahead TARGET...`: compile every Triton kernel for devices that this machine lacks.

The first target gets every launch, the others one of each kernel. The project's own launches run over tensors on the
CPU, with a driver that only reports the target: the compiled code is what would be launched there, with its types,
alignments and constants. Prints one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from kernel_support.launches import EVERYWHERE, LAUNCHES
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled kernel of a launch: bytes of shared memory and of code, and properties of NVIDIA's assembly."""

    launch: str
    target: str
    kernel: str
    shared: int
    binary_bytes: int
    asynchronous_copies: bool
    warp_group_products: bool

    @classmethod
    def of(cls, launch: str, target: str, kernel: str, compiled: Any) -> Compiled:
        """Return the facts of Triton's own record."""
        binary = compiled.asm["hsaco" if target.startswith("gfx") else "cubin"]
        assembly = compiled.asm.get("ptx", "")
        return cls(
            launch,
            target,
            kernel,
            shared=int(compiled.metadata.shared),
            binary_bytes=len(binary),
            asynchronous_copies="cp.async." in assembly,
            warp_group_products="wgmma.mma_async" in assembly,
        )


class NoDevice:
    """A driver without a device: compiling only needs the target."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        """Return a unique number, because launches are cached by device."""
        return list(TARGETS.values()).index(self._target)

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(target: GPUTarget, found: list[tuple[str, Any]]) -> Iterator[None]:
    """Compile launches without running them; `found` gets the kernels' names and their compiled code."""
    plain = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = plain(self, *args, grid=grid, warmup=True, **options)
        found.append((self.fn.__name__, kernel))
        return kernel

    driver.set_active(NoDevice(target))
    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = plain


def compile_launches(target: str, names: Iterable[str]) -> Iterator[Compiled]:
    """Compile the named launches for one target, in order."""
    for name in names:
        found: list[tuple[str, Any]] = []
        with compiling(TARGETS[target], found):
            LAUNCHES[name]()
        for kernel, compiled in found:
            yield Compiled.of(name, target, kernel, compiled)


def main() -> None:
    """Compile for the targets of the command line."""
    for number, target in enumerate(sys.argv[1:]):
        for compiled in compile_launches(target, sorted(EVERYWHERE) if number else LAUNCHES):
            print(json.dumps(asdict(compiled)), flush=True)


if __name__ == "__main__":
    main()
