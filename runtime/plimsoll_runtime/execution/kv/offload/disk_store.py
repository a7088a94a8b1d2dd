"""The disk tier below host memory: threads that write and read blocks while steps run.

A failure is reported and only costs cache. After some failures in a row the disk is switched off with one warning, and
reads and writes fail immediately. Blocks are still deleted then, because the next engine would read them. Deletions
that fail are repeated once at the end; if that fails too, a warning is logged.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from plimsoll_runtime.engine.kv.offload.base import Done
from plimsoll_runtime.execution.kv.offload.block_files import BlockFolder, CorruptBlockError, MissingBlockError
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks

logger = logging.getLogger(__name__)

READERS = 2
FAILURES = 8
"""Failures in a row after which the disk is switched off."""
EXIT_SECONDS = 5.0
"""Seconds that the interpreter's exit waits for a thread with unfinished work, because a disk may hang."""


class _Task(NamedTuple):
    """Write or read a frame. Without a frame: delete a name's block, or, without a name, all of them."""

    frame: int | None
    name: bytes | None


_Queue = SimpleQueue[_Task | None]


class DiskStore:
    """A `TierStore` over a folder: one thread that writes and deletes in order, some that read."""

    def __init__(self, folder: BlockFolder, host: HostBlocks) -> None:
        self._names = folder.names()
        self._writes: _Queue = SimpleQueue()
        self._reads: _Queue = SimpleQueue()
        self._worker = _Worker(folder, host)
        jobs = [(self._worker.write_all, self._writes), *[(self._worker.read_all, self._reads)] * READERS]
        self._threads = [
            threading.Thread(target=job, args=(queue,), name="kv-disk", daemon=True) for job, queue in jobs
        ]
        for thread in self._threads:
            thread.start()
            _threads.add(thread)
        _stores.add(self)
        # The threads do not refer to this object, so they end with it.
        self._ending = weakref.finalize(self, _end, self._writes, self._reads)

    @property
    def broken(self) -> bool:
        """Whether the disk is switched off."""
        return self._worker.broken

    def names(self) -> Sequence[bytes]:
        """Return the names of an earlier run's blocks, least recently used first."""
        return self._names

    def write(self, frame: int, name: bytes) -> None:
        """Queue a write of a frame's contents under a name."""
        self._writes.put(_Task(frame, name))

    def read(self, frame: int, name: bytes) -> None:
        """Queue a read of the block of a name into a frame."""
        self._reads.put(_Task(frame, name))

    def delete(self, name: bytes) -> None:
        """Queue the deletion of the block of a name."""
        self._writes.put(_Task(None, name))

    def clear(self) -> None:
        """Queue the deletion of all blocks."""
        self._writes.put(_Task(None, None))

    def poll(self) -> Sequence[Done]:
        """Return the reads and writes that have ended since the last call."""
        return self._worker.take_done()

    def wait(self, seconds: float) -> None:
        """Return when a read or write is over, or after `seconds`."""
        self._worker.told.wait(seconds)

    def close(self) -> None:
        """Complete all queued tasks, then end the threads and wait for them."""
        self.end()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """Complete all queued tasks, then end the threads, without waiting."""
        self._ending()


class _Stopwatch:
    """Measures the tasks of several threads. Time that two tasks overlap counts for the one that ends first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0

    def took(self, began: int, ended: int) -> int:
        """Return the nanoseconds to count for a task, given soon after it ended."""
        with self._lock:
            ns = max(0, ended - max(began, self._until))
            self._until = max(ended, self._until)
        return ns


class _Worker:
    """The state and work that the threads share."""

    def __init__(self, folder: BlockFolder, host: HostBlocks) -> None:
        self._folder = folder
        self._host = host
        self._done: deque[Done] = deque()
        self._failures = 0
        self._undeleted: list[_Task] = []
        self._lock = threading.Lock()
        self._writing, self._reading = _Stopwatch(), _Stopwatch()
        self.told = threading.Event()
        self.broken = False

    def write_all(self, queue: _Queue) -> None:
        """Write and delete until None is read from the queue; then release the folder for another engine."""
        self._serve(queue, self._write, self._writing)
        self._delete_again()
        self._folder.close()

    def read_all(self, queue: _Queue) -> None:
        """Read until None is read from the queue."""
        self._serve(queue, self._read, self._reading)

    def take_done(self) -> list[Done]:
        """Return the tasks that are over and were not returned before."""
        # Clear it even if no task is over: an event set late, for a task that was already taken, must not wake `wait`
        # repeatedly.
        self.told.clear()
        return [self._done.popleft() for _ in range(len(self._done))]

    def _serve(self, queue: _Queue, act: Callable[[_Task], None], watch: _Stopwatch) -> None:
        while (task := queue.get()) is not None:
            began = time.monotonic_ns()
            ok = (task.frame is None or not self.broken) and self._try(act, task)
            if task.frame is not None:
                self._done.append(Done(task.frame, ok, watch.took(began, time.monotonic_ns())))
                self.told.set()
            elif not ok:
                self._undeleted.append(task)

    def _delete_again(self) -> None:
        failed = [task for task in self._undeleted if not self._try(self._write, task)]
        if failed:
            logger.warning(
                "cannot delete outdated blocks of the KV cache; delete %s, or the next engine of this model uses them",
                self._folder.path,
            )

    def _write(self, task: _Task) -> None:
        frame, name = task
        if name is None:
            self._folder.clear()
        elif frame is None:
            self._folder.delete(name)
        else:
            self._folder.write(name, self._host.row(frame))

    def _read(self, task: _Task) -> None:
        frame, name = task
        assert frame is not None
        assert name is not None
        self._folder.read(name, self._host.row(frame))

    def _try(self, act: Callable[[_Task], None], task: _Task) -> bool:
        try:
            act(task)
        except MissingBlockError as error:
            # It was deleted while its read was queued. If the folder is gone, writes fail too.
            logger.debug("lost a block of the KV cache: %s", error)
            return False
        except (OSError, CorruptBlockError) as error:
            self._count(error)
            return False
        except Exception:
            logger.exception("the disk tier of the KV cache is switched off after an unexpected error")
            self.broken = True
            return False
        if task.frame is not None:
            # Deleting succeeds on a full disk too, so it says nothing about the disk's health.
            self._failures = 0
        return True

    def _count(self, error: Exception) -> None:
        logger.debug("lost a block of the KV cache: %s", error)
        with self._lock:
            self._failures += 1
            gives_up = self._failures >= FAILURES and not self.broken
            self.broken = self.broken or gives_up
        if gives_up:
            logger.warning(
                "the disk tier of the KV cache is switched off after %d failures in a row, the last: %s. "
                "Requests are still served. Blocks that are not in memory are computed again; repair %s and restart",
                FAILURES,
                error,
                self._folder.path,
            )


def _end(writes: _Queue, reads: _Queue) -> None:
    writes.put(None)
    for _ in range(READERS):
        reads.put(None)


_stores = weakref.WeakSet[DiskStore]()
_threads = weakref.WeakSet[threading.Thread]()


@atexit.register
def _end_all() -> None:
    """End all threads: a thread that ends may hold the last reference to a cache, and must not free it during exit."""
    for store in list(_stores):
        store.end()
    for thread in list(_threads):
        thread.join(EXIT_SECONDS)
