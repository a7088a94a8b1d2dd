"""ModelDeployments and the pods that 0.1.0 (commit da6d744) made of them, as its own code wrote them down.

`build_pod(read_spec(item), image, "a1b2c")` of that commit, for the specs in the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from operator_support.objects import Json

from plimsoll_operator.build.image import Image

_RECORDED: Json = json.loads((Path(__file__).parent / "pods-0.1.0.json").read_text())
IMAGE = Image(_RECORDED["image"])


@dataclass(frozen=True)
class Recorded:
    """A spec, and a pod of it."""

    spec: Json
    pod: Json


RECORDED = {name: Recorded(case["spec"], case["pod"]) for name, case in _RECORDED["cases"].items()}
