"""What decoding JSON that need not be honest raises."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Text that is not UTF-8, and what is nested too deeply, are no DecodeError."""
