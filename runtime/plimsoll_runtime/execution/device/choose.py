"""The device that models run on, decided in one place for whatever is started."""

from __future__ import annotations

import torch

from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.execution.device.read import read_facts
from plimsoll_runtime.execution.device.refusal import refusal


def choose(wanted: str) -> torch.device:
    """For one of `engine.config.DEVICES`; torch calls GPUs of AMD "cuda" too. For "cpu" no driver is asked.

    Raises DeviceLostError where it must be a GPU and torch finds none: to whoever had one, it is lost.
    """
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted == "cuda":
        raise DeviceLostError(refusal(read_facts(), _why_none()))
    return torch.device("cpu")


def _why_none() -> str:
    """In torch's words, which it only has for who insists."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "it gives no reason"
