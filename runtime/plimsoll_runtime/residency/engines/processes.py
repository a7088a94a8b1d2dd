"""Engines as processes: one for each awake model, images in memfds, a standby process, a fork server, and processes
that fetch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from plimsoll_runtime.driver.hub_fetch import HubFetch
from plimsoll_runtime.driver.process.handshake import Grant as EngineGrant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.messages import EngineInfo, TracedStep
from plimsoll_runtime.engine.step_tracing import StepTracing
from plimsoll_runtime.errors import DeviceLostError, UsageError
from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.memory.system import cgroup_limit, footprint
from plimsoll_runtime.residency.engines.base import Device, Found, Look, Started
from plimsoll_runtime.residency.engines.base import Image as ImageProtocol
from plimsoll_runtime.residency.engines.pressure import host_memory_left, judge, read_stalls
from plimsoll_runtime.residency.engines.standby_pool import StandbyPool
from plimsoll_runtime.residency.ledger import Grant
from plimsoll_runtime.residency.sizes import Sizes, size_text
from plimsoll_runtime.residency.spec import ModelName, ModelSpec, access_of, engine_config, least_kv
from plimsoll_runtime.utils.start_record import StartRecord
from plimsoll_runtime.utils.threads import in_daemon_thread
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.image import Image
from plimsoll_runtime.weights.sources.hub import Access
from plimsoll_runtime.weights.sources.resolve import resolve

FETCH_BYTES = 64 * 2**20
"""Memory of one fetch: 25 MiB were measured before it reads anything, and it reads up to eight files in 10 MB
pieces."""


class Fetches:
    """Limits concurrent fetches by free memory; `left` returns the free bytes. Thread-safe."""

    def __init__(self, left: Callable[[], int]) -> None:
        self._left = left
        self._lock = threading.Lock()
        self._under_way = set[HubFetch]()

    def new(self) -> HubFetch:
        """Return a fetch. Its call waits until there is memory for it."""
        return HubFetch(self)

    def enter(self, fetch: HubFetch) -> bool:
        """Count a fetch and return True if it may start, else False. It may if none runs, or if there is memory for it
        and for what running fetches have not taken yet.
        """
        with self._lock:
            if self._under_way:
                owed = sum(max(0, FETCH_BYTES - other.anonymous) for other in self._under_way)
                if self._left() < owed + FETCH_BYTES:
                    return False
            self._under_way.add(fetch)
            return True

    def leave(self, fetch: HubFetch) -> None:
        """Record the end of a fetch."""
        with self._lock:
            self._under_way.remove(fetch)

    @property
    def anonymous(self) -> int:
        """Bytes of private memory of all fetches."""
        with self._lock:
            return sum(fetch.anonymous for fetch in self._under_way)


ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""Device files of the drivers of NVIDIA and AMD, and of WSL. If none exists, torch need not look for a GPU."""
PROCESSES_DIFFER = 1.05
"""Factor on the measured memory of the fork server. Two processes with the same imports differed by 0.3 % of 300 MiB;
the rest is a reserve."""
COPIED_BYTES = 32 * 2**20
"""Memory shared with the fork server that an engine writes to, which copies it: measured 14 MiB after 1,700 steps and
650 requests, 12 of them during loading."""

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Takes what happens to models, for traces."""

    @property
    def step_tracing(self) -> StepTracing:
        """The steps that engines record."""

    def step_traced(self, name: ModelName, step: TracedStep, info: EngineInfo) -> None:
        """Called with each recorded step, before the requests get its outputs."""

    def started(
        self, name: ModelName, record: StartRecord, info: EngineInfo | None, error: BaseException | None
    ) -> None:
        """Called once for each fetch, load and wake that has ended. `error`: why it failed; None if it did not."""


class Processes:
    """The `Engines` of this machine.

    `limit`: most bytes of a CPU's memory that the runtime may take, if less than what is free. A container's limit is
    measured and need not be given. `device`: as in `EngineConfig.device`; it is resolved once, for all engines.

    The host process itself imports torch only to ask for an accelerator's memory.
    """

    def __init__(self, limit: int | None = None, device: str = "auto") -> None:
        self._observer: Observer | None = None
        self._limit = limit
        self._wanted = device
        self._spare = StandbyPool()
        self._fetches = Fetches(host_memory_left)
        self._capacity = self._line = 0
        self._server_bytes = self._engine_bytes = 0
        self._accelerated = False

    def observe(self, observer: Observer) -> None:
        """Report starts and recorded steps of later engines to an observer."""
        self._observer = observer

    async def open(self, line: float, sleepers: int) -> Device:
        """Start the standby process and the fork server, and return the device.

        The capacity of a CPU is the free memory plus what the runtime takes, within `limit` and the container's limit,
        less `sleepers`; that of a GPU is all of its memory. Raises UsageError if the sleepers would leave nothing of a
        CPU's memory, and DeviceLostError if a required GPU is missing or has failed.
        """
        server, standby = await self._spare.footprints()
        self._server_bytes = int(server * PROCESSES_DIFFER)
        self._engine_bytes = standby + COPIED_BYTES
        looked_for = self._wanted == "cuda" or (self._wanted == "auto" and any(map(Path.exists, ACCELERATORS)))
        gpu, findings = await in_daemon_thread(partial(_gpu, self._wanted)) if looked_for else (None, ())
        self._accelerated = gpu is not None
        if gpu is not None:
            device = gpu
        else:
            # Free and used memory are measured one after the other, so their sum may exceed the total.
            bounds = (host_memory_left() + self._own(), self._limit, cgroup_limit())
            limit = min(bound for bound in bounds if bound is not None)
            if sleepers >= limit:
                raise UsageError(
                    f"--sleepers {size_text(sleepers)} leaves none of the {size_text(limit)} of memory for awake "
                    "models; lower it"
                )
            device = Device("cpu", _cpu_name(), limit - sleepers, shared=True, findings=findings)
        self._capacity, self._line = device.capacity, int(device.capacity * line)
        return device

    def look(self) -> Look:
        """Return the free memory of the device, what the runtime itself takes of it, and the pressure."""
        if self._accelerated:
            left = _gpu_left()
            return Look(left, 0, judge(left, self._capacity, self._line, None))
        left = host_memory_left()
        return Look(left, self._own(), judge(left, self._capacity, self._line, read_stalls()))

    async def find(self, name: ModelName, spec: ModelSpec) -> Found:
        """Fetch the model's files, and have the standby process read their headers. Cancelling ends the fetch."""
        with self._observed(name, StartRecord("fetch", "fetch files")) as observed:
            files = await self._files(engine_config(spec), access_of(name, spec))
            observed.record("read headers", 0.0)
            needs = await self._spare.needs(self._config(spec, files), least_kv(spec))
        sizes = Sizes(
            image=needs.image,
            weights=needs.private if self._accelerated else needs.image + needs.private,
            workspace=needs.workspace + self._process,
            kv_minimum=needs.kv_least,
            kv_useful=max(needs.kv_least, needs.kv_most),
        )
        return Found(sizes, files)

    def image(self, name: ModelName, size: int) -> ImageProtocol:
        """Return an image in an empty memfd."""
        return Image.create(size, str(name))

    async def start(
        self, name: ModelName, spec: ModelSpec, found: Found, image: ImageProtocol | None, grant: Grant
    ) -> Started:
        """Turn the standby process into the engine; a new one replaces it once the engine is ready."""
        assert image is None or isinstance(image, Image)
        sizes = found.sizes
        granted = EngineGrant(
            weights=grant.weights,
            workspace=grant.workspace - self._process,
            kv=grant.kv,
            kv_least=0 if self._accelerated else min(sizes.kv_minimum, grant.kv),
            kv_most=0 if self._accelerated else max(sizes.kv_useful, grant.kv),
        )
        config = self._config(spec, found.files)
        woken = image is not None and image.complete
        with self._observed(name, StartRecord("wake" if woken else "load", "start the engine")) as observed:
            if (observer := self._observer) is None:
                engine = await self._spare.engine(config, image, granted)
            else:
                config = replace(config, step_tracing=observer.step_tracing)
                traced = partial(observer.step_traced, name)
                engine = await self._spare.engine(config, image, granted, observed.record, traced)
            observed.info = engine.info
        info = engine.info
        workspace = info.workspace_bytes + (0 if self._accelerated else max(self._engine_bytes, info.overhead_bytes))
        # The next wake is checked against the prediction, so only larger measurements replace it.
        measured = Grant(
            max(grant.weights, info.weight_bytes), max(grant.workspace, workspace), min(grant.kv, engine.kv_bytes)
        )
        return Started(engine, measured, 0 if image is None else image.nbytes)

    async def close(self) -> None:
        """End the standby process and the fork server."""
        await self._spare.close()

    @contextmanager
    def _observed(self, name: ModelName, record: StartRecord) -> Iterator[_Observed]:
        """Report the start within the context to the observer when it has ended, unless it is cancelled."""
        observed = _Observed(record)
        try:
            yield observed
        except Exception as error:
            if self._observer is not None:
                self._observer.started(name, record, None, error)
            raise
        if self._observer is not None:
            self._observer.started(name, record, observed.info, None)

    async def _files(self, config: EngineConfig, access: Access | None) -> ModelFiles:
        fetch = self._fetches.new()
        try:
            return await in_daemon_thread(lambda: resolve(config.model, config.revision, access=access, fetch=fetch))
        finally:
            fetch.call_off()

    def _config(self, spec: ModelSpec, files: ModelFiles) -> EngineConfig:
        """Return the engine's options, with its files and the device whose memory it is granted."""
        config = replace(engine_config(spec), device="cuda" if self._accelerated else "cpu")
        return _with_files(config, files)

    @property
    def _process(self) -> int:
        """Bytes of the device that an engine process takes without a model."""
        return 0 if self._accelerated else self._engine_bytes

    def _own(self) -> int:
        """Return the memory of this process, the standby process, the fork server and the fetches, including what they
        will take soon.
        """
        standing = self._server_bytes + self._engine_bytes
        return footprint(os.getpid()).anonymous + standing + self._fetches.anonymous


@dataclass(slots=True)
class _Observed:
    """A start under way. `info`: set once an engine is ready."""

    record: StartRecord
    info: EngineInfo | None = None


def _with_files(config: EngineConfig, files: ModelFiles) -> EngineConfig:
    """Return the config with a path to the files found, so that loading needs no hub (which may change) and no token.

    A demo model keeps its name, because its files do not tell its EOS tokens.
    """
    if config.model.startswith("demo://"):
        return config
    path = files.weights[0] if files.format == "gguf" else files.root
    return replace(config, model=str(path), revision=None)


def _cpu_name() -> str:
    """Return the CPU's name from the kernel; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _gpu(wanted: str) -> tuple[Device | None, tuple[str, ...]]:
    """Return the first GPU (None if torch finds none), and the findings about GPUs. Drivers may take seconds to answer.

    Raises DeviceLostError if the GPU has failed, or if `wanted` is "cuda" and there is none.
    """
    import torch

    from plimsoll_runtime.execution.device.gpus import device_name, log_findings
    from plimsoll_runtime.execution.device.select import choose

    with _told_as_lost():
        device, found = choose(wanted), log_findings()
        if device.type == "cpu":
            logger.warning("a GPU driver is installed but torch finds no GPU; models run on the CPU")
            return None, found
        capacity = int(torch.accelerator.get_memory_info(device)[1])
        name = device_name(device)
    return Device(device.type, name, capacity, shared=False, elastic=False, findings=found), found


def _gpu_left() -> int:
    """Return the GPU's free bytes. Raises DeviceLostError if it has failed."""
    import torch

    from plimsoll_runtime.execution.memory.kv_budget import free_memory

    with _told_as_lost():
        return free_memory(torch.device("cuda"))


@contextmanager
def _told_as_lost() -> Iterator[None]:
    """Convert any device failure within the context to DeviceLostError: no kernel runs in this process that could have
    caused it.
    """
    try:
        yield
    except RuntimeError as error:
        fault = fault_of(error)
        if fault.process_can_go_on:
            raise
        raise DeviceLostError(fault.text) from error
