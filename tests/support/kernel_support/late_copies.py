"""A device that computes synchronously and whose copies complete late, for whole engines on a CPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload import host_memory
from plimsoll_runtime.execution.kv.offload.copies import Mark

Contents = list[tuple[Tensor, Tensor]]
"""Tensors with their future contents."""


class _Asked:
    """A point after a step's copies, which is reached after some queries of the host.

    Until then, frames that the step fills have their old contents, and frames that it reads must not change.
    """

    def __init__(self, copies: LateCopies) -> None:
        self._copies = copies
        self.unasked = 0
        self.filled: Contents = []
        self.read: Contents = []

    @torch.inference_mode()
    def query(self) -> bool:
        self.unasked -= 1
        if self.unasked > 0:
            return False
        self.show()
        self._copies.spoilt += sum(not torch.equal(frames, contents) for frames, contents in self.read)
        self._copies.passed += bool(self.read)
        return True

    def show(self) -> None:
        """Make the copied contents visible."""
        for frames, contents in self.filled:
            frames.copy_(contents)
        self.filled = []


class LateCopies:
    """Implements `Streams`. A step's copies are over after the host's `questions`-th query.

    `passed` counts steps that have read frames, `spoilt` their copies during which a frame has changed.
    """

    def __init__(self, questions: int) -> None:
        self.spoilt = 0
        self.passed = 0
        self._questions = questions
        self._on_device: set[int] = set()
        self._launched: list[tuple[Tensor, Tensor]] = []
        self._steps: list[_Asked] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Build engines for such a device from here on."""
        blocks = KvCache.blocks

        def noted(cache: KvCache, first: int, count: int) -> Tensor:
            found = blocks(cache, first, count)
            self._on_device.add(found.untyped_storage().data_ptr())
            return found

        patch.setattr(KvCache, "blocks", noted)
        patch.setattr(host_memory, "streams_of", lambda device: self)

    def mark(self) -> Mark:
        return _Asked(self)

    def computed(self, mark: Mark) -> None:
        pass

    def copied(self, mark: Mark) -> None:
        pass

    def copy_behind(self, mark: Mark) -> None:
        pass

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Store the copies; they are done when computation waits for them."""
        self._launched += pairs

    @torch.inference_mode()
    def compute_behind(self, mark: Mark) -> None:
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
        pass
