"""What Triton compiles while people wait for it: after the warm-up that is to be nothing.

A kernel is compiled anew for each combination of its constants, of its arguments' types, and of what Triton knows of
their values (1, multiples of 16). A variant that comes from Triton's cache on disk counts too: it is loaded, and waited
for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

logger = logging.getLogger(__name__)


class Compilations:
    """Counts variants of kernels that are compiled between `begin` and `pause`; warns of each kernel once."""

    def __init__(self) -> None:
        self.count = 0
        self._counting = False
        self._told: set[str] = set()

    def begin(self) -> None:
        """From now on whatever is compiled makes somebody wait."""
        self._counting = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile nobody is served, and what is compiled does not count."""
        counting, self._counting = self._counting, False
        try:
            yield
        finally:
            self._counting = counting

    def compiled(self, kernel: str) -> None:
        """A variant of this kernel was compiled."""
        if not self._counting:
            return
        self.count += 1
        if kernel not in self._told:
            self._told.add(kernel)
            logger.warning(
                "the Triton kernel %s was compiled while serving, which the warm-up should have done: requests have "
                "waited for it",
                kernel,
            )


class CompileHook:
    """Triton's hook behind each compilation, which tells of it whoever had the hook before, too."""

    def __init__(self, compilations: Compilations, before: Callable[..., Any] | None) -> None:
        self._compilations = compilations
        self._before = before

    def __call__(self, **info: Any) -> Any:
        """As Triton calls it, with `fn` among the rest, whose name is the kernel's."""
        self._compilations.compiled(info["fn"].name)
        return None if self._before is None else self._before(**info)


COMPILATIONS = Compilations()
"""Those of this process: Triton keeps what it has compiled for all who are in it."""


def watch_triton() -> Compilations | None:
    """Those of this process, which Triton tells from now on; None where it is not installed."""
    if find_spec("triton") is None:
        return None
    from triton import knobs

    before = knobs.runtime.jit_post_compile_hook
    if not isinstance(before, CompileHook):
        knobs.runtime.jit_post_compile_hook = CompileHook(COMPILATIONS, before)
    return COMPILATIONS
