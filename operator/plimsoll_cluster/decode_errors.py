"""The exceptions that msgspec and json raise for unreadable JSON or MessagePack."""

from __future__ import annotations

import msgspec

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""Besides DecodeError: ValueError for text that is not UTF-8, RecursionError for data nested too deeply."""
