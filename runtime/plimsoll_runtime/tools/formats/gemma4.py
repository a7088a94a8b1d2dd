"""Gemma 4: `<|tool_call>call:f{city:<|"|>Oslo<|"|>}<tool_call|>`."""

from __future__ import annotations

from plimsoll_runtime.tools.quoted_format import QuotedFormat

GEMMA4 = QuotedFormat("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
