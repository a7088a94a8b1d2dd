"""The most memory that this process held, since the last time it was asked to forget (Linux)."""

from __future__ import annotations

from pathlib import Path

RESET_PEAK = "5"
"""What proc(5) wants in clear_refs to start the high-water mark anew."""


def forget_peak() -> None:
    """The mark starts at what is held now."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def peak_bytes() -> int:
    """The high-water mark of resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM")
