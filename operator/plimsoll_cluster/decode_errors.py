"""What is raised where JSON or MessagePack is read that somebody else wrote, by msgspec or by json."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Text that is not UTF-8, and what is nested too deeply, are no DecodeError."""
