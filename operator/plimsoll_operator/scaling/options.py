"""Where gateways are found, as the command line says it."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Gateways:
    """A name that stands for the address of each gateway, and the port on which they tell of demand."""

    name: str
    port: int


def gateways(text: str) -> Gateways:
    """Read NAME:PORT. Raises ArgumentTypeError."""
    name, colon, port = text.rpartition(":")
    if (
        not colon
        or NAME.fullmatch(name) is None
        or re.fullmatch("[0-9]{1,5}", port) is None
        or not 0 < int(port) < 65536
    ):
        raise argparse.ArgumentTypeError(
            f"{text[:64]!r} is not NAME:PORT, such as plimsoll-metrics.plimsoll-system.svc:8081"
        )
    return Gateways(name, int(port))
