"""The key of a measurement, which applies to one kernel, device, software and shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "triton")


@dataclass(frozen=True, slots=True)
class TuningKey:
    """kernel: its name; source: a digest of its code; shape: the sizes that its speed depends on."""

    kernel: str
    source: str
    device: str
    versions: Mapping[str, str | None]
    shape: Mapping[str, int | str]

    @classmethod
    def of(cls, kernel: str, code: Sequence[Path], device: torch.device, shape: Mapping[str, int | str]) -> TuningKey:
        """Return the key of the kernel whose code is in those files, on that device, with the installed packages."""
        source = hashlib.sha256(b"\0".join(path.read_bytes() for path in code)).hexdigest()[:16]
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return cls(kernel, source, name, {package: package_version(package) for package in PACKAGES}, dict(shape))

    @property
    def name(self) -> str:
        """The name of the file with the result: readable at its beginning, unique by its end."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{self.kernel}-{digest[:24]}"


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
