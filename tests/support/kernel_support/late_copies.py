"""A device that computes at once and whose copies the host sees late, for whole engines on a CPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload import host_memory
from plimsoll_runtime.execution.kv.offload.copies import Mark

Contents = list[tuple[Tensor, Tensor]]
"""Tensors, and what they are to hold."""


class _Asked:
    """A point behind a step's copies, which the host has come to when it has asked often enough.

    Until then frames that the step fills hold what they held before, and those that it reads must not change.
    """

    def __init__(self, copies: LateCopies) -> None:
        self._copies = copies
        self.unasked = 0
        self.filled: Contents = []
        self.read: Contents = []

    @torch.inference_mode()
    def query(self) -> bool:
        """See Mark."""
        self.unasked -= 1
        if self.unasked > 0:
            return False
        self.show()
        self._copies.spoilt += sum(not torch.equal(frames, contents) for frames, contents in self.read)
        self._copies.passed += bool(self.read)
        return True

    def show(self) -> None:
        """What the step fills is there."""
        for frames, contents in self.filled:
            frames.copy_(contents)
        self.filled = []


class LateCopies:
    """See Streams. The host has to ask so many `questions` before a step's copies are over.

    `passed` counts steps that have read frames, `spoilt` the copies of theirs under which a frame has changed.
    """

    def __init__(self, questions: int) -> None:
        self.spoilt = 0
        self.passed = 0
        self._questions = questions
        self._on_device: set[int] = set()
        self._launched: list[tuple[Tensor, Tensor]] = []
        self._steps: list[_Asked] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From here on engines are built for such a device."""
        blocks = KvCache.blocks

        def noted(cache: KvCache, first: int, count: int) -> Tensor:
            found = blocks(cache, first, count)
            self._on_device.add(found.untyped_storage().data_ptr())
            return found

        patch.setattr(KvCache, "blocks", noted)
        patch.setattr(host_memory, "streams_of", lambda device: self)

    def mark(self) -> Mark:
        """See Streams."""
        return _Asked(self)

    def computed(self, mark: Mark) -> None:
        """See Streams."""

    def copied(self, mark: Mark) -> None:
        """See Streams."""

    def copy_behind(self, mark: Mark) -> None:
        """See Streams."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """See Streams. Nothing is done before what computes waits for it."""
        self._launched += pairs

    @torch.inference_mode()
    def compute_behind(self, mark: Mark) -> None:
        """See Streams."""
        assert isinstance(mark, _Asked)
        mark.unasked, mark.read = self._questions, []
        self._steps.append(mark)
        for target, source in self._launched:
            if target.untyped_storage().data_ptr() not in self._on_device:
                mark.filled.append((target, source.clone()))
                continue
            for step in self._steps:
                step.show()
            self._steps = [mark]
            target.copy_(source)
            mark.read.append((source, source.clone()))
        self._launched = []

    def drain(self) -> None:
        """See Streams."""
