"""The API document for gateways: the server's, without the paths that only a server has.

A gateway imports nothing of the runtime, so it gets the document as files, which `make reference` writes (`python -m
plimsoll_runtime.api.openapi.gateway_pages operator/plimsoll_gateway/pages`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from plimsoll_runtime.api.openapi.document import document
from plimsoll_runtime.api.openapi.html import page
from plimsoll_runtime.api.openapi.welcome import template

OWN = frozenset({"/metrics", "/version"})
"""Paths of a single server: a gateway has its metrics on another port."""
TITLE = "Plimsoll gateway"
ABOUT = "One address for all models here, with the APIs of OpenAI and Anthropic."
DESCRIPTION = (
    "All models behind one URL, in the formats of OpenAI and Anthropic. A request goes to a replica of the model that "
    "it names; "
)


def files() -> dict[str, str]:
    """Return the contents of the files by name."""
    told = gateway_document()
    return {
        "openapi.json": json.dumps(told, separators=(",", ":")) + "\n",
        "docs.html": page(told) + "\n",
        "welcome.html": template(TITLE, ABOUT) + "\n",
    }


def gateway_document() -> dict[str, Any]:
    """Return the document (OpenAPI 3.1)."""
    told = document()
    info = told["info"]
    about = DESCRIPTION + info["description"].partition(". ")[2].replace("Unknown", "unknown", 1)
    return {
        **told,
        "info": {**info, "title": TITLE, "description": about},
        "paths": {path: methods for path, methods in told["paths"].items() if path not in OWN},
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
