"""Sends requests as litellm's users do; runs in the environment that has it.

`litellm_client.py FILE`: the file has a list of requests as JSON, each with `way` (a function of litellm) and its
arguments. Prints as JSON the class of each request's error, empty for none, and the header Retry-After of its
response.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # do not fetch prices

import litellm
import openai


def error_of(way: str, arguments: dict[str, Any]) -> dict[str, str | None]:
    try:
        answer = getattr(litellm, way)(**arguments, num_retries=0, max_retries=0)
        if arguments.get("stream"):
            list(answer)
    except openai.OpenAIError as error:
        response = getattr(error, "response", None)
        headers = {} if response is None else response.headers
        return {"error": type(error).__name__, "retry_after": headers.get("retry-after")}
    return {"error": "", "retry_after": None}


if __name__ == "__main__":
    print(json.dumps([error_of(asked.pop("way"), asked) for asked in json.loads(Path(sys.argv[1]).read_text())]))
