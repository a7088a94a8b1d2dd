"""The most memory that this process held, since the last time it was asked to forget (Linux)."""

from __future__ import annotations

from pathlib import Path

RESET_PEAK = "5"
"""What proc(5) wants in clear_refs to start the high-water mark anew."""


def forget_peak() -> None:
    """The mark starts at what is held now."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def peak_bytes(process: int | None = None) -> int:
    """The high-water mark of resident memory, of this process or another one. Raises ProcessLookupError without one."""
    name = "self" if process is None else process
    try:
        lines = Path(f"/proc/{name}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"there is no process {name}") from error
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(f"the process {name} has ended")
