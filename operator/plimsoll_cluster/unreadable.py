"""What msgspec raises where it reads what somebody else wrote, JSON or MessagePack."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Text that is not UTF-8, and what is nested too deeply, are no DecodeError."""
