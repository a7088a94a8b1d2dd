"""Amounts of memory as people write them: "2GiB", "512 MB", "40%"."""

from __future__ import annotations

import re

from plimsoll_runtime.errors import UsageError

UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def is_share(text: str) -> bool:
    """Whether it is written as a part of what is free: "40%"."""
    return text.strip().endswith("%")


def parse_size(text: str, free: int) -> int:
    """Bytes of "2GiB", "1.5 GB", "1073741824", or "40%" of `free`.

    Raises UsageError when the text is none of these or not positive.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*|%)\s*", text, re.ASCII)
    unit = match.group(2).upper() if match else None
    if match is None or (unit != "%" and unit not in UNITS) or float(match.group(1)) <= 0:
        raise UsageError(f"{text!r} is not an amount of memory; write it like 2GiB, 512MiB or 40%")
    number = float(match.group(1))
    if unit == "%":
        if number > 100:
            raise UsageError(f"{text!r} is more than all of the memory; write at most 100%")
        return int(free * number / 100)
    return int(number * UNITS[unit or ""])
