"""The process of one rank of a parallel group: it loads its part of the model, and runs the plans that arrive."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import threading
from dataclasses import dataclass, replace

import msgspec
import torch

from plimsoll_kernels.cpu import library
from plimsoll_kernels.cpu.exchange import Exchange, ExchangeError
from plimsoll_runtime.driver.build.engine import build_runner
from plimsoll_runtime.driver.build.group_devices import backend_of, check_machine, place_of
from plimsoll_runtime.driver.process.engine_process import failed_by, name_process
from plimsoll_runtime.driver.process.handshake import StartRank
from plimsoll_runtime.driver.process.heartbeat import Pulse
from plimsoll_runtime.driver.process.interfaces import set_interface
from plimsoll_runtime.driver.process.progress_report import ProgressReport
from plimsoll_runtime.driver.process.started_rank import SHOW_STACKS
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.execution.device.select import choose, cores
from plimsoll_runtime.execution.forward import NoBackendError
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.channel import BackendFailed, Channel, ChannelClosed, RankReady, encoded
from plimsoll_runtime.parallel.collectives import Exchanging, LocalCollectives, TorchCollectives
from plimsoll_runtime.parallel.layout import Layout, layout_of
from plimsoll_runtime.parallel.links import Link, TorchLink
from plimsoll_runtime.parallel.member import CountedCollectives, Passed, RankSteps, no_choice
from plimsoll_runtime.parallel.mesh import connected
from plimsoll_runtime.parallel.rank import Rank
from plimsoll_runtime.parallel.remote_grammars import compile_for
from plimsoll_runtime.weights.image import Image

logger = logging.getLogger(__name__)


def run_rank(order: StartRank, page: int, steps_fd: int, constraints_fd: int, segment: int, image: int) -> int:
    """Load and serve until the channel of steps is closed; return the exit code. An error is sent before the end.

    The descriptors are those of `StartRank`.
    """
    faulthandler.register(SHOW_STACKS)
    pulse = Pulse(page)
    os.close(page)
    name_process(f"plimsoll-rank-{order.rank}")
    link = Channel(socket.socket(fileno=steps_fd), StepPlan)
    try:
        steps = _built(order, link, pulse, socket.socket(fileno=constraints_fd), segment, Image(image))
        gc.collect()
        gc.freeze()
        steps.run()
    except ChannelClosed:
        return 0
    except NoBackendError as error:
        logger.exception("the attention backend failed")
        link.send(encoded(BackendFailed(error.backend, str(error))))
        return ErrorKind.ENGINE.exit_code
    except Exception as error:
        if not isinstance(error, PlimsollError):
            logger.exception("the rank failed")
        failed = failed_by(error)
        if isinstance(error, ExchangeError) and order.config.pipeline_parallel > 1:
            together = layout_of(order.config).together(order.rank)
            where = f"rank {together.start} is rank 0 of its stage, in which"
            failed = msgspec.structs.replace(failed, message=f"{where} {failed.message}")
        link.send(encoded(failed))
        return ErrorKind(failed.kind).exit_code
    return 0


def _built(
    order: StartRank, link: Channel, pulse: Pulse, constraints: socket.socket, segment: int, image: Image
) -> RankSteps:
    config = rank_config(order)
    if order.instructions is not None:
        # The member has sent its own value of the variable to the leader, as its best instruction set.
        os.environ[library.VARIABLE] = order.instructions
    device = choose(config.device)
    if order.member:
        # The leader's engine process has checked its own machine.
        check_machine(config, device, order.neighbours)
    sharing = order.neighbours
    if device.type == "cuda":
        number, sharing = place_of(order.place, order.neighbours, torch.cuda.device_count())
        torch.cuda.set_device(number)
    layout = layout_of(config)
    joined = _joined(order, layout, device, segment)
    collectives = CountedCollectives(joined.stage, pulse.took, joined.link)
    rank = Rank(order.rank, layout, sharing, joined.group, collectives, order.num_blocks, order.failed_backends)
    progress = ProgressReport(lambda event: link.send(encoded(event))) if order.rank == 0 else _no_progress
    built = build_runner(config, progress, image=image, rank=rank)
    if order.rank == 0:
        arguments = (constraints, built.assembled.grammars)
        threading.Thread(target=compile_for, args=arguments, name="plimsoll-constraints", daemon=True).start()
    info = built.info if order.rank == 0 else None
    link.send(encoded(RankReady(info, built.prompt_len, built.prompt_seconds)))
    program = built.model.outline
    assert isinstance(program, Program)
    passed = Passed(torch.float32 if built.model.fused else built.model.dtype, device)
    choice, timeline = built.assembled.choice, built.assembled.timeline
    fail = no_choice if choice is None else choice.fail
    waiting = joined.stage.waiting if isinstance(joined.stage, LocalCollectives) else None
    return RankSteps(link, built.runner, timeline, collectives, program, passed, fail, waiting)


@dataclass(frozen=True, slots=True)
class _Joined:
    """The exchanges of a rank: with all ranks, with those of its stage (None if it is the only one), and the link to
    other stages (None if there are none).
    """

    group: Exchanging
    stage: Exchanging | None
    link: Link | None = None


def _joined(order: StartRank, layout: Layout, device: torch.device, segment: int) -> _Joined:
    """Join the group, and return when all ranks have joined."""
    backend, rank = backend_of(order.config, device), order.rank
    check = order.config.check_collectives
    in_memory = None
    # The segment is empty if the ranks of the stage cannot share memory.
    if backend == "local" and os.fstat(segment).st_size:
        in_memory = LocalCollectives(Exchange(segment, layout.tensor, layout.shard(rank), check=check))
    os.close(segment)
    if in_memory is not None and layout.stages == 1:
        return _Joined(in_memory, in_memory)
    set_interface(backend, order.address)
    group = TorchCollectives("gloo" if backend == "local" else backend, order.meeting, rank, layout.size, check=check)
    if backend == "local":
        # gloo serves to find the other ranks, and until the first step.
        found = connected(group, order.address, layout, rank, in_memory=in_memory, check=check)
        return _Joined(group, found.stage, found.link)
    link = None
    if layout.stages > 1:
        link = TorchLink(layout, rank, group.device, check=check)
    return _Joined(group, group.among(layout) if layout.tensor > 1 else None, link)


def rank_config(order: StartRank) -> EngineConfig:
    """Return the options of one rank, with its part of the machine's threads."""
    config = order.config
    return replace(config, threads=max(1, (config.threads or cores()) // order.neighbours))


def _no_progress(stage: str, fraction: float, transfer: object = None) -> None:
    """Report nothing."""
