"""The peak memory of this process since it was last reset (Linux)."""

from __future__ import annotations

from pathlib import Path

RESET_PEAK = "5"
"""Value for clear_refs that resets the high-water mark (see proc(5))."""


def forget_peak() -> None:
    """Reset the high-water mark to the current memory."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)


def peak_bytes(process: int | None = None) -> int:
    """Return the high-water mark of resident memory of this or another process. Raises ProcessLookupError
    without one.
    """
    name = "self" if process is None else process
    try:
        lines = Path(f"/proc/{name}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"there is no process {name}") from error
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(f"the process {name} has ended")
