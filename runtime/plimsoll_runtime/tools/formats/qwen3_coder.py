"""Qwen3-Coder and Qwen 3.5: functions and parameters in tags, values as plain text between line breaks."""

from __future__ import annotations

from plimsoll_runtime.tools.function_tags import FunctionTags

QWEN3_CODER = FunctionTags("qwen3_coder", special=False, begin="<tool_call>", end="</tool_call>", edge="\n")
