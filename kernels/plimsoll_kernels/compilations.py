"""Counts what Triton compiles while requests wait for it; after the warm-up there should be nothing.

A kernel is compiled again for each combination of its constants, its arguments' types, and Triton's knowledge of their
values (1, multiples of 16). A variant from Triton's cache on disk counts too, because requests wait while it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

logger = logging.getLogger(__name__)


class Compilations:
    """Counts variants of kernels that are compiled after `begin`, except while paused; warns once for each kernel."""

    def __init__(self) -> None:
        self.count = 0
        self._counting = False
        self._told: set[str] = set()

    def begin(self) -> None:
        """Count all compilations from here on: requests wait for them."""
        self._counting = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count compilations within the `with` block, because no request is served."""
        counting, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = counting

    def compiled(self, kernel: str) -> None:
        """Count a variant of this kernel that Triton has just compiled; do nothing before `begin` and while paused."""
        if not self._counting:
            return
        self.count += 1
        if kernel not in self._told:
            self._told.add(kernel)
            logger.warning(
                "the Triton kernel %s was compiled while serving instead of during the warm-up, and requests "
                "waited for it",
                kernel,
            )


class CompileHook:
    """Triton's hook after each compilation, which also calls the hook that was set before."""

    def __init__(self, compilations: Compilations, before: Callable[..., Any] | None) -> None:
        self._compilations = compilations
        self._before = before

    def __call__(self, **info: Any) -> Any:
        """Called by Triton; `fn` among the arguments has the kernel's name."""
        self._compilations.compiled(info["fn"].name)
        return None if self._before is None else self._before(**info)


COMPILATIONS = Compilations()
"""The compilations of this process: Triton shares compiled kernels within a process."""


def watch_triton() -> Compilations | None:
    """Set Triton's hook and return the process's compilations; None if Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from triton import knobs

    before = knobs.runtime.jit_post_compile_hook
    if not isinstance(before, CompileHook):
        knobs.runtime.jit_post_compile_hook = CompileHook(COMPILATIONS, before)
    return COMPILATIONS
