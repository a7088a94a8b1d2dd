"""The parts of the processor's extended state that the threads of a process use, as the kernel saved them (ptrace)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

TILES = 3 << 17
"""Bits of XSTATE_BV: AMX's tile configuration and data (Intel SDM, volume 1, section 13.1)."""
SEIZE, INTERRUPT, GETREGSET, DETACH = 0x4206, 0x4207, 0x4204, 17
NT_X86_XSTATE = 0x202
XSTATE_BV = 512
WALL = 0x40000000


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def states_of(pid: int) -> list[int]:
    """Return XSTATE_BV of each thread."""
    return [_state(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]


def _state(thread: int) -> int:
    buffer = ctypes.create_string_buffer(1 << 15)
    vector = _Vector(ctypes.addressof(buffer), len(buffer))
    try:
        _ptrace(SEIZE, thread, 0, 0)
    except PermissionError as error:
        pytest.skip(f"this machine lets no process look into another: {error}")
    try:
        _ptrace(INTERRUPT, thread, 0, 0)
        os.waitpid(thread, WALL)
        _ptrace(GETREGSET, thread, NT_X86_XSTATE, ctypes.addressof(vector))
    finally:
        _ptrace(DETACH, thread, 0, 0)
    return int.from_bytes(buffer.raw[XSTATE_BV : XSTATE_BV + 8], "little")


def _ptrace(request: int, thread: int, address: int, data: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    if call(request, thread, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request:#x} of thread {thread}")
