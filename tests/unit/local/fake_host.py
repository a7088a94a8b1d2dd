"""A fake `plimsoll host`: its options and endpoints without models. Each model answers with its name."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.local.model import load_models


def main() -> None:
    args = build_parser().parse_args(["host", *sys.argv[1:]])
    print(f"arguments {sys.argv[1:]} OF_BOTH={os.environ.get('OF_BOTH')}", flush=True)
    asyncio.run(serve(args, Path(args.host_token_file).read_text().strip()))


def entry(namespace: str, name: str) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "name": name,
        "state": "InHost",
        "since": time.time() - 60,
        "why": "3 min idle",
        "weights": 0,
        "workspace": 0,
        "kv": 0,
        "hostBytes": 7 << 20,
        "active": 0,
        "waiting": 2,
        "error": None,
    }


async def serve(args: argparse.Namespace, token: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    models = load_models(args.models, sys.stdin)

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ready"})

    async def chat(request: web.Request) -> web.StreamResponse:
        name = (await request.json())["model"]
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": the model is being loaded\n\n")
        chunk = {"choices": [{"delta": {"content": f"{name} says hello."}}]}
        await response.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())
        return response

    async def metrics(_request: web.Request) -> web.Response:
        labels = f'namespace="{models[0].namespace}",model="{models[0].name}"'
        lines = (
            f"plimsoll_generated_tokens_total{{{labels}}} {200 * time.monotonic()}",
            f"plimsoll_last_request_timestamp_seconds{{{labels}}} {time.time() - 7300}",
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def report(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"error": {"code": "unauthorized", "message": ""}}, status=401)
        device = {"name": "a processor", "line": 2**30, "used": 2**29, "reserved": 2**28, "pressure": "none"}
        device["findings"] = ["3.0 GiB of it are held by a game", "it has no bfloat16"]
        sleepers = {"capacity": 64 << 20, "used": 7 << 20}
        placed = [entry(model.namespace, model.name) for model in models]
        return web.json_response({"instance": "fake", "device": device, "sleepers": sleepers, "models": placed})

    runners = []
    for port, routes in (
        (args.port, (web.get("/health", health), web.get("/metrics", metrics), web.post("/v1/chat/completions", chat))),
        (args.host_port, (web.get("/host/v1/report", report),)),
    ):
        app = web.Application()
        app.add_routes(routes)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], args.host, port).start()
    await stop.wait()
    for runner in runners:
        await runner.cleanup()


if __name__ == "__main__":
    main()
