"""AMX: tiles are requested once, refused without harm, selected if they are faster, and released after a step."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from kernel_support.instructions import Build
from kernel_support.xstate import TILES, states_of

from plimsoll_kernels.cpu import library
from plimsoll_kernels.cpu.library import kernels, runnable
from plimsoll_kernels.cpu.linear import PackedLinear

AMX = Build("amx", torch.bfloat16)

REFUSED = """
import ctypes, logging, os, torch

class Stack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

# A signal stack that is too small for a thread's tiles: while it exists, Linux grants none.
memory = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0
logging.basicConfig(level=logging.WARNING, format="%(message)s")

from plimsoll_kernels.cpu.library import InstructionsError, kernels
from plimsoll_kernels.cpu.linear import PackedLinear

found = kernels(torch.bfloat16)
for dtype in (torch.bfloat16, torch.float32, torch.float16):
    kernels(dtype)
out = PackedLinear(found, torch.ones(40, 48, dtype=torch.bfloat16))(torch.ones(20, 48, dtype=torch.bfloat16))
print(found.name.decode(), bool((out == 48).all()))
os.environ["PLIMSOLL_CPU_ISA"] = "amx"
try:
    kernels(torch.bfloat16)
except InstructionsError as error:
    print(error)
"""

STEPS = """
import sys, torch
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.cpu.linear import PackedLinear
from plimsoll_kernels.cpu.threads import share

share(3)
linear = PackedLinear(kernels(torch.bfloat16, "amx"), torch.ones(4096, 1024, dtype=torch.bfloat16))
for rows in (1, 64, 500):
    linear(torch.ones(rows, 1024, dtype=torch.bfloat16))
print("done", flush=True)
sys.stdin.read()
"""

LEFT = """
import ctypes, mmap, sys

shapes = bytearray(64)
shapes[0] = 1
for tile in range(8):
    shapes[16 + 2 * tile], shapes[48 + tile] = 64, 16
libc = ctypes.CDLL(None)
assert libc.syscall(158, 0x1023, 18) == 0
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("c4e2784907" "c4e27b49c0" "c3"))  # ldtilecfg (%rdi); tilezero %tmm0; ret
call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
call(bytes(shapes))
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setattr(library._chosen, "name", None)  # packed weights of another test may have set it
    AMX.kernels()
    library._best.cache_clear()
    yield
    library._best.cache_clear()


@pytest.mark.long
def test_a_refusal_is_told_once_and_vectors_compute() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, timeout=120)
    chosen, error = done.stdout.splitlines()
    assert chosen in ("avx512_bf16 True", "avx512 True")
    assert error == (
        "PLIMSOLL_CPU_ISA=amx cannot run here: the system grants this process no AMX tiles: No space left on device; "
        "unset it"
    )
    [line] = [line for line in done.stderr.splitlines() if "AMX" in line]
    assert line.startswith("the system grants this process no AMX tiles: No space left on device; the CPU kernels use")


def test_tiles_that_win_the_trial_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported speed is theirs. Whether they win depends on the machine's other load and is not tested."""
    monkeypatch.setattr(library, "product_seconds", lambda systems, rows: [one.name != b"amx" for one in systems])
    found = kernels(torch.bfloat16)
    assert found is not None
    assert found.name == b"amx"
    told = library.speed(torch.bfloat16)
    assert told is not None
    assert told.instructions == "amx"
    assert min(told.rate, told.peak) > 0


def test_float32_needs_no_tiles() -> None:
    found = kernels(torch.float32)
    assert found is not None
    assert found.name == b"avx512"
    assert runnable()[-1] == "amx"


def tiles_in_use(program: str) -> list[bool]:
    """Return for each thread of a process that has run the program and waits whether it has tiles; helpers spin a
    little before they sleep.
    """
    found: list[bool] = []
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        for _ in range(100):
            found = [bool(state & TILES) for state in states_of(process.pid)]
            if not any(found):
                break
            time.sleep(0.01)
        process.communicate()
    return found


@pytest.mark.long
def test_no_thread_keeps_tiles_after_a_step() -> None:
    found = tiles_in_use(STEPS)
    assert len(found) >= 3
    assert not any(found)


def test_tiles_that_are_kept_would_be_seen() -> None:
    assert any(tiles_in_use(LEFT))


def test_between_two_products_of_ours_onednn_may_use_tiles_too() -> None:
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=numbers).bfloat16() for shape in ((40, 256), (96, 256)))
    ours = PackedLinear(AMX.kernels(), weight)
    first, theirs = ours(x), torch.nn.functional.linear(x, weight)
    for rows in (1, 40, 17):
        assert torch.equal(ours(x[:rows]), first[:rows])
        assert torch.equal(torch.nn.functional.linear(x, weight), theirs)


def test_a_row_is_the_same_among_any_number_of_rows() -> None:
    """Tiles are as high as there are rows, and the last one may begin in the one before it."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(150, 200, generator=numbers).bfloat16()
    linear = PackedLinear(AMX.kernels(), torch.randn(100, 200, generator=numbers).bfloat16())
    whole = linear(x)
    assert all(torch.equal(linear(x[:count]), whole[:count]) for count in range(1, 150))
