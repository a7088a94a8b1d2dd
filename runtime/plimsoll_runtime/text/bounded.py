"""A sandbox for templates that bounds how long they run and how large what they multiply becomes.

Jinja's own bounds a single range, and nothing that is nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_ITERATIONS = 1_000_000
"""Of all loops of a rendering together, calls of macros included."""
LONGEST_PRODUCT = 2**24
"""Items of a text or list that is repeated."""
MOST_BITS = 4096
"""Of a whole number that is multiplied or raised to a power."""

_COUNT = "_count"
_left: ContextVar[list[int]] = ContextVar("iterations that are left")


@contextmanager
def bounded() -> Iterator[None]:
    """A rendering: its iterations are counted from here."""
    before = _left.set([MOST_ITERATIONS])
    try:
        yield
    finally:
        _left.reset(before)


@pass_context
def _count(_context: Context, value: bool) -> bool:
    """The same value. Raises SecurityError where there were too many.

    A filter, which no template can give another meaning; its context keeps it from being computed ahead.
    """
    left = _left.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"its loops run for more than {MOST_ITERATIONS:,} iterations")
    return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """To be rendered from within `bounded`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters[_COUNT] = _count

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, _counting_statement(loop.lineno))
            if loop.test is not None:
                loop.test = nodes.And(_counting(loop.lineno), loop.test, lineno=loop.lineno)
        for macro in tree.find_all(nodes.Macro):
            macro.body.insert(0, _counting_statement(macro.lineno))
        for block in tree.find_all(nodes.CallBlock):
            block.body.insert(0, _counting_statement(block.lineno))
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply, or raise to a power, within bounds. Raises SecurityError."""
        if _size(operator, left, right) > 1:
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)


def _counting(line: int) -> nodes.Filter:
    return nodes.Filter(nodes.Const(True, lineno=line), _COUNT, [], [], None, None, lineno=line)


def _counting_statement(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_counting(line), lineno=line)


def _size(operator: str, left: Any, right: Any) -> float:
    """What the result has, in parts of what it may have."""
    if isinstance(left, int) and isinstance(right, int):
        if operator == "**":
            return left.bit_length() * max(right, 0) / MOST_BITS
        return (left.bit_length() + right.bit_length()) / MOST_BITS
    if operator == "**":
        return 0
    for items, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(items, "__len__"):
            return len(items) * max(times, 0) / LONGEST_PRODUCT
    return 0
