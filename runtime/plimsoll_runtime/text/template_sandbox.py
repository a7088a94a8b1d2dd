"""A template sandbox that limits running time and memory.

Jinja's own sandbox limits only single ranges. Before any operation that creates a value of another size, its size is
estimated (`of_filter`, `of_method`), and all operations are charged to one budget (`template_limits.Budget`):
operators, filters, methods, literals, slices and output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from string import Formatter
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from plimsoll_runtime.text.template_limits import (
    ESCAPED,
    POINTER,
    bounded,
    budget,
    formatted,
    of_filter,
    of_method,
    product,
    widest,
)

__all__ = ["BoundedEnvironment", "bounded", "bounded_filter"]

_COUNT, _MADE, _READ, _CONCAT = "_count", "_made", "_read", "_concat"
_LAZY = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
_WHOLE = frozenset({"batch", "groupby", "join", "list", "reverse", "slice", "sort", "sum", "unique"})
"""Filters that consume an iterator completely."""


# Internal filters, which templates cannot redefine. Taking the context keeps Jinja from evaluating them at compile
# time.
@pass_context
def _count(_context: Context, value: bool) -> bool:
    budget().iterate()
    return value


@pass_context
def _made(_context: Context, value: Any) -> Any:
    return budget().made(value)


@pass_context
def _read(_context: Context, value: Any) -> Any:
    budget().read(value)
    return value


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    texts = [budget().text(value) for value in values]
    budget().spend(sum(map(sys.getsizeof, texts)))
    return (markup_join if context.eval_ctx.autoescape else str_join)(texts)


@pass_context
def _written(_context: Context, value: Any) -> str:
    return budget().text(value)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter so that its result is estimated before the call and charged after it."""
    passed = getattr(
        getattr(function, "jinja_pass_arg", None), "name", None
    )  # set by jinja2.pass_context and similar decorators

    @wraps(function)
    def guarded(context: Context, value: Any, *args: Any, **options: Any) -> Any:
        ours, arguments = budget(), [*args, *options.values()]
        if name in _WHOLE and isinstance(value, Iterator):
            value = ours.listed(value)
        items = len(value) if name in _LAZY and hasattr(value, "__len__") else 0
        ours.spend(POINTER * items)
        for argument in (value if isinstance(value, str) else None, *arguments):
            ours.read(argument)
        ours.afford(of_filter(ours, name, value, arguments), f"the filter {name}")
        first = {"context": (context,), "eval_context": (context.eval_ctx,), "environment": (context.environment,)}
        return ours.made(function(*first.get(passed or "", ()), value, *args, **options))

    return pass_context(guarded)


class _Formatter(SandboxedFormatter):
    """Limits the width of fields in `str.format`."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        budget().afford(ESCAPED * budget().weigh(value).size + 4 * widest(str(format_spec)), "format")
        return budget().made(super().format_field(value, format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        budget().afford(ESCAPED * budget().weigh(value).size, "format")
        return budget().made(super().convert_field(value, conversion))


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """An environment for rendering within `bounded`. Additional filters must be wrapped with `bounded_filter`."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_written)
        self.filters = {name: bounded_filter(name, function) for name, function in self.filters.items()}
        for name, function in ((_COUNT, _count), (_MADE, _made), (_READ, _read), (_CONCAT, _concat)):
            self.filters[name] = function
        del self.globals["lipsum"]  # creates any number of random words

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Bounds().visit(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator within the budget. Raises SecurityError."""
        ours = budget()
        if operator == "+":
            size = float(sys.getsizeof(left) + sys.getsizeof(right))
        elif operator == "%":
            size = formatted(ours, left, right)
        else:
            size = product(operator, left, right)
        ours.afford(size, operator)
        return ours.summed(super().call_binop(context, operator, left, right), operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method within the budget. Raises SecurityError."""
        ours, value = budget(), getattr(__obj, "__self__", None)
        if isinstance(value, str | bytes | int | float):
            arguments = [*args, *kwargs.values()]
            for argument in (value, *arguments):
                ours.read(argument)
            name = str(getattr(__obj, "__name__", ""))
            ours.afford(of_method(ours, name, value, arguments), f"the method {name}")
        found = super().call(__context, __obj, *args, **kwargs)
        return found if isinstance(__obj, Macro) else ours.made(found)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a budgeted `str.format` or `str.format_map`, or None for other values."""
        text = getattr(value, "__self__", None)
        name = getattr(value, "__name__", "")
        if not isinstance(text, str) or name not in ("format", "format_map") or not callable(value):
            return None
        formatter: Formatter = (
            _EscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)
        )

        def wrapper(*args: Any, **kwargs: Any) -> str:
            if name == "format_map":
                (kwargs,), args = args, ()
            return type(text)(formatter.vformat(text, args, kwargs))

        return wrapper


class _Bounds(NodeTransformer):
    """Adds counting to loops and macros, and charges for values created without a filter or call."""

    def visit_For(self, loop: nodes.For) -> nodes.Node:
        self.generic_visit(loop)
        loop.body.insert(0, _counting_statement(loop.lineno))
        if loop.test is not None:
            loop.test = nodes.And(_counting(loop.lineno), loop.test, lineno=loop.lineno)
        return loop

    def visit_Macro(self, macro: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(macro)
        macro.body.insert(0, _counting_statement(macro.lineno))
        return macro

    visit_CallBlock = visit_Macro

    def visit_Output(self, output: nodes.Output) -> nodes.Node:
        self.generic_visit(output)
        output.nodes = [_at_run_time(node) if isinstance(node, nodes.TemplateData) else node for node in output.nodes]
        return output

    def visit_Concat(self, concat: nodes.Concat) -> nodes.Node:
        self.generic_visit(concat)
        return _through(_CONCAT, nodes.List(concat.nodes, lineno=concat.lineno))

    def visit_List(self, literal: nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(literal)
        return _through(_MADE, literal)

    visit_Dict = visit_List

    def visit_Tuple(self, literal: nodes.Tuple) -> nodes.Node:
        self.generic_visit(literal)
        return _through(_MADE, literal) if literal.ctx == "load" else literal

    def visit_Getitem(self, item: nodes.Getitem) -> nodes.Node:
        self.generic_visit(item)
        return _through(_MADE, item) if isinstance(item.arg, nodes.Slice) else item

    def visit_Compare(self, compare: nodes.Compare) -> nodes.Node:
        self.generic_visit(compare)
        compare.expr = _reading(compare.expr)
        for operand in compare.ops:
            operand.expr = _reading(operand.expr)
        return compare

    def visit_Test(self, test: nodes.Test) -> nodes.Node:
        self.generic_visit(test)
        if test.name not in ("defined", "undefined"):
            test.node = _reading(test.node)
            test.args = [_reading(argument) for argument in test.args]
        return test


def _at_run_time(data: nodes.TemplateData) -> nodes.Expr:
    """Return the template's own text as an expression, so that it is charged each time it is written."""
    return nodes.MarkSafeIfAutoescape(nodes.Const(data.data, lineno=data.lineno), lineno=data.lineno)


def _reading(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _through(_READ, value)


def _counting(line: int) -> nodes.Filter:
    return _through(_COUNT, nodes.Const(True, lineno=line))


def _counting_statement(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_counting(line), lineno=line)


def _through(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)
