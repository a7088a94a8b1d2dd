"""The host API as a document: its routes, and the JSON schemas of requests and responses.

`python -m plimsoll_runtime.api.host.document > docs/reference/host-api.json` writes it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from plimsoll_runtime.api.host.app import ROUTES
from plimsoll_runtime.api.host.errors import HostErrorAnswer
from plimsoll_runtime.api.host.requests import (
    BODY_LIMIT,
    MAX_WAIT,
    PinRequest,
    PlaceRequest,
    RemoveRequest,
    SleepRequest,
    WakeRequest,
)
from plimsoll_runtime.residency.report import ModelReport, Report
from plimsoll_runtime.residency.spec import ModelSpec
from plimsoll_runtime.residency.states import State

REF = "#/$defs/"
STATUSES = {
    "200": "done: the model's entry of the report, null once it is removed",
    "202": "in progress: the model's present entry",
    "400": "the request or the model's source is invalid",
    "401": "no valid token",
    "404": "no such model",
    "409": "the operation's name was used for another change, or a later operation replaced it",
    "413": f"the body is larger than {BODY_LIMIT} bytes",
    "503": "not possible at present; Retry-After says when to try again",
    "507": "the model does not fit; the message has the numbers",
}


def document() -> dict[str, Any]:
    """Return the whole document."""
    kinds = (PlaceRequest, RemoveRequest, WakeRequest, SleepRequest, PinRequest, ModelSpec, Report, HostErrorAnswer)
    _, definitions = msgspec.json.schema_components(kinds, ref_template=REF + "{name}")
    definitions["PlaceRequest"]["properties"]["spec"] = {"$ref": REF + ModelSpec.__name__}
    definitions[ModelReport.__name__]["properties"]["state"] = {"enum": [state.value for state in State]}
    return {
        "title": "The host API of a shared runtime pod",
        "routes": [
            {
                "method": route.method,
                "path": route.path,
                "request": None if route.request is None else REF + route.request.__name__,
                "answer": REF + (Report if route.request is None else ModelReport).__name__,
            }
            for route in ROUTES
        ],
        "query": {"after": "a sequence", "wait": f"seconds, at most {MAX_WAIT:g}"},
        "statuses": STATUSES,
        "errors": REF + HostErrorAnswer.__name__,
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
