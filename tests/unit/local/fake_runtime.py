"""A fake `plimsoll serve`: the same options and endpoints without a model. Its MODEL selects the behaviour.

`demo://ok` answers, and generates 500 tokens per second; `demo://mute` does not answer at `/metrics`; `demo://crash`
exits with code 4 and last words, `demo://exit-N` with code N; `demo://tight` runs out of memory once it is ready;
`demo://stuck` ignores SIGTERM while it loads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from aiohttp import web

from plimsoll_runtime.residency.spec import ModelName

ANSWER = ["The capital ", "of France ", "is Paris."]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--name", action="append")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--deployment", type=ModelName.parse)
    args = parser.parse_args()
    print(f"arguments {sys.argv[1:]}", flush=True)
    if args.model == "demo://crash":
        print("reading the files", flush=True)
        Path(os.environ["PLIMSOLL_TERMINATION_LOG"]).write_text("unknown architecture 'Nonsense'\n")
        sys.exit(4)
    if args.model.startswith("demo://exit-"):
        sys.exit(int(args.model.removeprefix("demo://exit-")))
    Path(os.environ["PLIMSOLL_FINDINGS"]).write_text("a MIG slice: 20 GiB\nno bfloat16\n")
    asyncio.run(serve(args))


async def serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if args.model == "demo://stuck":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    asks = 0

    async def health(request: web.Request) -> web.Response:
        nonlocal asks
        asks += 1
        if args.model == "demo://stuck" or asks <= 2:
            body = {"status": "loading", "stage": "reading weights", "fraction": 0.25 * asks}
            return web.json_response(body, status=503)
        if args.model == "demo://tight" and asks > 4:
            os._exit(5)
        return web.json_response({"status": "ready"})

    async def metrics(request: web.Request) -> web.Response:
        if args.model == "demo://mute":
            await stop.wait()
        labels = f'namespace="{args.deployment.namespace}",model="{args.deployment.name}"'
        lines = (
            ("plimsoll_requests_in_flight", 2 if args.model == "demo://ok" else 0),
            ("plimsoll_generated_tokens_total", 500 * time.monotonic()),
            ("plimsoll_last_request_timestamp_seconds", time.time() - 300),
        )
        return web.Response(text="".join(f"{series}{{{labels}}} {value}\n" for series, value in lines))

    async def chat(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in ANSWER:
            chunk = {"choices": [{"delta": {"content": piece}}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, args.host, args.port).start()
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    main()
