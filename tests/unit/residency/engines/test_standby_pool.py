"""Standby processes that are killed at critical moments."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from model_support.tiny import make_model, save_model

from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.driver.process.standby import ForkServer, StandbyProcess
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import EngineDeadError, SourceError
from plimsoll_runtime.residency.engines.standby_pool import TRIES, StandbyPool

Doom = Callable[[int], list[StandbyProcess]]


@pytest.fixture
def doom(monkeypatch: pytest.MonkeyPatch) -> Doom:
    """Return a function that dooms the next `number` forked processes, half of them after they report to be ready. Its
    list has all forked processes.
    """
    fork = ForkServer.fork

    def begin(number: int) -> list[StandbyProcess]:
        made: list[StandbyProcess] = []

        async def fork_one(server: ForkServer) -> StandbyProcess:
            made.append(await fork(server))
            if len(made) <= number:
                if len(made) % 2:
                    await made[-1].ready()
                await kill(made[-1].pid)
            return made[-1]

        monkeypatch.setattr(ForkServer, "fork", fork_one)
        return made

    return begin


@pytest.fixture
async def spare() -> AsyncIterator[StandbyPool]:
    made = StandbyPool()
    yield made
    await made.close()


def config(folder: Path) -> EngineConfig:
    if not folder.exists():
        save_model(make_model("LlamaConfig", {"head_dim": 16}), folder)
    return EngineConfig(model=str(folder), dtype="float32", threads=1, max_model_len=128)


async def kill(pid: int) -> None:
    """Kill a process, and return when it has ended; it is not reaped."""
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def gone(pid: int) -> None:
    """Return when a process has ended and was reaped."""
    async with asyncio.timeout(60):
        while psutil.pid_exists(pid):
            await asyncio.sleep(0.01)


async def pid(spare: StandbyPool) -> int:
    """Return the standby process's id."""
    return (await spare.pids())[1]


@pytest.mark.long
async def test_another_takes_the_place_of_those_that_end_before_they_are_ready(spare: StandbyPool, doom: Doom) -> None:
    made = doom(TRIES - 1)
    assert await pid(spare) == made[-1].pid
    assert len(made) == TRIES
    assert [each.alive for each in made] == [False] * (TRIES - 1) + [True]


@pytest.mark.long
async def test_where_every_one_ends_at_once_it_is_told_how_the_last_did(spare: StandbyPool, doom: Doom) -> None:
    made = doom(TRIES)
    with pytest.raises(EngineDeadError, match="3 standby processes ended in a row; the last one") as told:
        await spare.pids()
    assert (
        f"the standby process {made[-1].pid} was killed by signal 9; the kernel kills processes when memory runs out"
        in str(told)
    )
    assert len(made) == TRIES
    assert await pid(spare) == made[-1].pid, "the next call tries again"


@pytest.mark.long
async def test_one_that_is_killed_while_it_stands_by_is_missed_by_nobody(
    spare: StandbyPool, doom: Doom, tmp_path: Path
) -> None:
    made = doom(0)
    os.kill(await pid(spare), signal.SIGKILL)
    needs = await spare.needs(config(tmp_path / "m"), None)
    assert len(made) == 2
    grant = Grant(weights=needs.image + needs.private, workspace=needs.workspace, kv=needs.kv_least)
    os.kill(await pid(spare), signal.SIGKILL)
    engine = await spare.engine(config(tmp_path / "m"), None, grant)
    assert engine.pid == made[2].pid
    assert await pid(spare) == made[3].pid, "the next one stands by"
    await engine.stop()


@pytest.mark.long
async def test_what_an_engine_says_itself_is_told_at_once(spare: StandbyPool, doom: Doom, tmp_path: Path) -> None:
    made = doom(0)
    with pytest.raises(SourceError, match="does not exist"):
        await spare.engine(EngineConfig(model=str(tmp_path / "none")), None, Grant(weights=1, workspace=1, kv=1))
    assert await pid(spare) == made[-1].pid
    assert len(made) == 2


@pytest.mark.long
async def test_another_forks_where_the_one_that_forks_is_killed(spare: StandbyPool) -> None:
    server, standby = await spare.pids()
    await kill(server)
    assert (await spare.pids())[1] == standby, "it is not needed while a standby process exists"
    await kill(standby)
    assert not {server, standby} & set(await spare.pids())


@pytest.mark.long
async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next_ones(
    spare: StandbyPool, tmp_path: Path
) -> None:
    standby = await pid(spare)
    os.kill(standby, signal.SIGSTOP)  # otherwise it may have answered before the request is cancelled
    asking = asyncio.create_task(spare.needs(EngineConfig(model=str(tmp_path / "none")), None))
    await asyncio.sleep(0)
    asking.cancel()
    os.kill(standby, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await spare.needs(config(tmp_path / "m"), None)).max_model_len == 128


@pytest.mark.long
async def test_one_that_never_answers_is_ended_and_holds_nobody_up(
    spare: StandbyPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = await pid(spare)
    os.kill(standby, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(spare, "_seconds", 0.01)
        with pytest.raises(EngineDeadError, match=r"headers of .*/none did not answer for 0\.01 s and was killed"):
            await spare.needs(EngineConfig(model=str(tmp_path / "none")), None)
    await gone(standby)
    assert await pid(spare) != standby, "another process replaces it"


@pytest.mark.long
async def test_one_that_never_says_that_it_is_ready_is_ended_and_holds_nobody_up(
    spare: StandbyPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kill(await pid(spare))
    fork, made = ForkServer.fork, list[StandbyProcess]()

    async def silent(server: ForkServer) -> StandbyProcess:
        made.append(await fork(server))
        patch.setattr(made[-1], "ready", asyncio.Event().wait)
        patch.setattr(spare, "_seconds", 0.01)
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "fork", silent)
        with pytest.raises(
            EngineDeadError, match=r"should become the standby process did not answer for 0\.01 s and was killed"
        ):
            await spare.footprints()
    [standby] = made
    await gone(standby.pid)
    assert await pid(spare) != standby.pid, "another process replaces it"


@pytest.mark.long
async def test_a_process_that_forks_and_is_stopped_is_ended_and_holds_nobody_up(
    spare: StandbyPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, standby = await spare.pids()
    os.kill(server, signal.SIGSTOP)
    await kill(standby)
    with monkeypatch.context() as patch:
        patch.setattr(spare, "_seconds", 0.01)
        with pytest.raises(EngineDeadError, match=r"forks engines did not answer for 0\.01 s and was killed"):
            await spare.pids()
    await gone(server)
    assert server not in await spare.pids()


@pytest.mark.long
async def test_what_has_ended_is_not_measured(spare: StandbyPool) -> None:
    """A process that has ended, reaped or not, counts neither as 0 bytes nor as an error."""
    before = await spare.footprints()
    for ended in range(2):
        await kill((await spare.pids())[ended])
        after = await spare.footprints()
        assert all(0.5 * old < new < 2 * old for old, new in zip(before, after, strict=True)), (before, after)
