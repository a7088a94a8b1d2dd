"""The process of one rank of a parallel group: it loads its part of the model, and runs the plans that arrive."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import threading
from dataclasses import replace

import torch

from plimsoll_kernels.cpu.exchange import MOST_RANKS, Exchange
from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.driver.build.engine import build_runner
from plimsoll_runtime.driver.process.engine_process import failed_by, name_process
from plimsoll_runtime.driver.process.handshake import StartRank
from plimsoll_runtime.driver.process.heartbeat import Pulse
from plimsoll_runtime.driver.process.network import interface_of
from plimsoll_runtime.driver.process.progress_report import ProgressReport
from plimsoll_runtime.driver.process.started_rank import SHOW_STACKS
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.errors import ErrorKind, PlimsollError
from plimsoll_runtime.execution.device.select import choose, cores
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.parallel.channel import Channel, ChannelClosed, RankReady, encoded
from plimsoll_runtime.parallel.collectives import Exchanging, LocalCollectives, TorchCollectives
from plimsoll_runtime.parallel.member import CountedCollectives, RankSteps, no_choice
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
    except Exception as error:
        if not isinstance(error, PlimsollError):
            logger.exception("the rank failed")
        failed = failed_by(error)
        link.send(encoded(failed))
        return ErrorKind(failed.kind).exit_code
    return 0


def _built(
    order: StartRank, link: Channel, pulse: Pulse, constraints: socket.socket, segment: int, image: Image
) -> RankSteps:
    config = rank_config(order)
    device = choose(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(order.place)
    collectives = CountedCollectives(_joined(order, device, segment), pulse.took)
    rank = Rank(order.rank, order.size, order.neighbours if device.type == "cpu" else 1, collectives, order.num_blocks)
    progress = ProgressReport(lambda event: link.send(encoded(event))) if order.rank == 0 else _no_progress
    built = build_runner(config, progress, image=image, rank=rank)
    if order.rank == 0:
        arguments = (constraints, built.assembled.grammars)
        threading.Thread(target=compile_for, args=arguments, name="plimsoll-constraints", daemon=True).start()
    info = built.info if order.rank == 0 else None
    link.send(encoded(RankReady(info, built.prompt_len, built.prompt_seconds)))
    program = built.model.outline
    assert isinstance(program, Program)
    choice, timeline = built.assembled.choice, built.assembled.timeline
    return RankSteps(link, built.runner, timeline, collectives, program, no_choice if choice is None else choice.fail)


def _joined(order: StartRank, device: torch.device, segment: int) -> Exchanging:
    """Join the group, and return its collectives when all ranks have joined."""
    backend = backend_of(order, device)
    check = order.config.check_collectives
    if backend == "local" and order.neighbours == order.size:
        exchange = Exchange(segment, order.size, order.rank, check=check)
        os.close(segment)
        return LocalCollectives(exchange)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of(order.address))
    if backend == "local":
        # gloo serves to find the other ranks.
        gloo = TorchCollectives("gloo", order.meeting, order.rank, order.size)
        return connected(gloo, order.address, order.rank, order.size, check=check)
    return TorchCollectives(backend, order.meeting, order.rank, order.size, check=check)


def rank_config(order: StartRank) -> EngineConfig:
    """Return the options of one rank, with its part of the machine's threads."""
    config = order.config
    return replace(config, threads=max(1, (config.threads or cores()) // order.neighbours))


def backend_of(order: StartRank, device: torch.device) -> str:
    """Return the backend of a rank for its option and device."""
    option = order.config.group_backend
    if option != "auto":
        return option
    if device.type == "cuda":
        return "nccl"
    return "local" if order.size <= MOST_RANKS and library() is not None else "gloo"


def _no_progress(stage: str, fraction: float, transfer: object = None) -> None:
    """Report nothing."""
