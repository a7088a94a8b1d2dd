"""Seed-OSS: functions and parameters in tags, values as plain text."""

from __future__ import annotations

from plimsoll_runtime.tools.function_tags import FunctionTags

SEED_OSS = FunctionTags("seed_oss", special=True, begin="<seed:tool_call>", end="</seed:tool_call>")
