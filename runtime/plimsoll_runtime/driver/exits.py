"""How a process ended, in words."""

from __future__ import annotations


def exit_text(code: int | None) -> str:
    """`code` as `subprocess` tells it, negative for a signal; None where it is not known."""
    if code is None:
        return "has ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return how + ("; the kernel kills what uses more memory than there is" if code == -9 else "")
