from __future__ import annotations

import asyncio
import io

from rich.console import Console

from plimsoll_runtime.local.display import Display
from plimsoll_runtime.local.processes.status_board import Board, Phase, Status


def test_lines_where_there_is_no_terminal() -> None:
    board = Board(["m-0"])
    out = io.StringIO()
    with Display(board, Console(file=out, width=40)):
        board.report("m-0", Status(Phase.STARTING, pid=1))
        for percent in range(0, 25, 2):
            board.report("m-0", Status(Phase.LOADING, stage="reading weights", fraction=percent / 100))
        board.report("m-0", Status(Phase.LOADING, stage="warming up"))
        board.report("m-0", Status(Phase.READY, took=2.5))
        board.report("m-0", Status(Phase.READY, took=2.5))
        board.report("m-0", Status(Phase.UNREADY))
        board.report("m-0", Status(Phase.WAITING, error="killed by SIGKILL: [a]\nb" + "x" * 50, wait=1.0))
        board.report("m-0", Status(Phase.FAILED, error="exited with code 3: there is no such model"))
    assert out.getvalue().splitlines() == [
        "m-0: loading: reading weights 0%",
        "m-0: loading: reading weights 10%",
        "m-0: loading: reading weights 20%",
        "m-0: loading: warming up",
        "m-0: ready after 2.5 s",
        "m-0: not ready",
        "m-0: killed by SIGKILL: [a]",
        "b" + "x" * 50,
        "m-0: restarting in 1.0 s",
        "m-0: exited with code 3: there is no such model",
        "m-0: a restart would not help; correct the error, then run `plimsoll up` again",
    ]


async def test_waiting_for_the_board() -> None:
    board = Board(["a", "b"])

    def ready() -> bool:
        return all(status.phase is Phase.READY for status in board.statuses.values())

    waiter = asyncio.create_task(board.until(ready))
    for slot in ("a", "b"):
        await asyncio.sleep(0)
        assert not waiter.done()
        board.report(slot, Status(Phase.READY))
    async with asyncio.timeout(60):
        await waiter
        await board.until(ready)
