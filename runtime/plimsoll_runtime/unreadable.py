"""What decoding JSON that somebody else wrote may raise."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Text that is not UTF-8, and what is nested too deeply, are no MsgspecError."""
