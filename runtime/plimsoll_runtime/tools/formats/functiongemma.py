"""FunctionGemma: `<start_function_call>call:f{city:<escape>Oslo<escape>}<end_function_call>`."""

from __future__ import annotations

from plimsoll_runtime.tools.quoted_format import QuotedFormat

FUNCTIONGEMMA = QuotedFormat("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")
