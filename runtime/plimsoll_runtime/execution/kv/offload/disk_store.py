"""The disk behind host memory: threads that write and read blocks while steps run.

What fails is told as failed and costs cache. After some failures in a row the disk is given up, with one warning, and
reads and writes fail at once. Only what is to be forgotten is still deleted: the next engine would find it. What cannot
be deleted is tried once more in the end; then a person hears of it.
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
"""So many in a row, and the disk is given up."""
EXIT_SECONDS = 5.0
"""So long the interpreter's end waits for a thread that still has something to do: a disk may hang for ever."""


class _Task(NamedTuple):
    """Without a frame: delete a name's block, or, without a name, all of them."""

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
        # The threads do not refer to this object: they end with it.
        self._ending = weakref.finalize(self, _end, self._writes, self._reads)

    @property
    def broken(self) -> bool:
        """Whether it has given up."""
        return self._worker.broken

    def names(self) -> Sequence[bytes]:
        """What an earlier run has left, least recently used first."""
        return self._names

    def write(self, frame: int, name: bytes) -> None:
        """Keep a frame's contents under a name."""
        self._writes.put(_Task(frame, name))

    def read(self, frame: int, name: bytes) -> None:
        """Fill a frame with what is kept under a name."""
        self._reads.put(_Task(frame, name))

    def delete(self, name: bytes) -> None:
        """Keep nothing under this name any longer."""
        self._writes.put(_Task(None, name))

    def clear(self) -> None:
        """Keep nothing at all any longer."""
        self._writes.put(_Task(None, None))

    def poll(self) -> Sequence[Done]:
        """The reads and writes that are over."""
        return self._worker.take_done()

    def wait(self, seconds: float) -> None:
        """Return once something is over, or after so many seconds."""
        self._worker.told.wait(seconds)

    def close(self) -> None:
        """Do what was asked for so far, then end the threads."""
        self.end()
        for thread in self._threads:
            thread.join()

    def end(self) -> None:
        """The same, without waiting for it."""
        self._ending()


class _Stopwatch:
    """What each of several threads' tasks took; what two took at once counts for the one that ends first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0

    def took(self, began: int, ended: int) -> int:
        """Nanoseconds of a task that lasted from one time to the other, given soon after it ended."""
        with self._lock:
            ns = max(0, ended - max(began, self._until))
            self._until = max(ended, self._until)
        return ns


class _Worker:
    """What the threads share."""

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
        """Write and delete until None comes; then the folder is free for another engine."""
        self._serve(queue, self._write, self._writing)
        self._delete_again()
        self._folder.close()

    def read_all(self, queue: _Queue) -> None:
        """Read until None comes."""
        self._serve(queue, self._read, self._reading)

    def take_done(self) -> list[Done]:
        """What is over and was not taken before."""
        # Also where nothing is there: a word that came late, for what was taken already, must not wake `wait` for ever.
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
                "blocks of the KV cache that were to be forgotten cannot be deleted; delete %s, or the next engine of "
                "this model finds them there",
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
            # It was forgotten while it waited to be read. Where the folder is gone, writes fail too.
            logger.debug("a block of the KV cache is lost: %s", error)
            return False
        except (OSError, CorruptBlockError) as error:
            self._count(error)
            return False
        except Exception:
            logger.exception("the disk tier of the KV cache is switched off: it failed in an unforeseen way")
            self.broken = True
            return False
        if task.frame is not None:
            # A full disk lets go of what a failed write has not left there: that says nothing of its health.
            self._failures = 0
        return True

    def _count(self, error: Exception) -> None:
        logger.debug("a block of the KV cache is lost: %s", error)
        with self._lock:
            self._failures += 1
            gives_up = self._failures >= FAILURES and not self.broken
            self.broken = self.broken or gives_up
        if gives_up:
            logger.warning(
                "the disk tier of the KV cache is switched off after %d failures in a row, the last: %s. "
                "Requests are served as before, what is not in memory is computed again; see to %s and restart",
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
    """A thread that ends may be the last that holds a cache, and must not free that while the interpreter ends."""
    for store in list(_stores):
        store.end()
    for thread in list(_threads):
        thread.join(EXIT_SECONDS)
