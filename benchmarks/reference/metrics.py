"""The metrics of operator, gateway and runtime, read from the sources: name, type, labels and help text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"plimsoll_[a-z][a-z_]+")
COMPONENTS = {
    "Operator": (
        "operator/plimsoll_operator/metrics.py",
        "operator/plimsoll_operator/controller/object_metrics.py",
    ),
    "Gateway": (
        "operator/plimsoll_gateway/telemetry/metrics.py",
        "operator/plimsoll_gateway/admission/quota_sync/sync.py",
    ),
    "Runtime": (
        "runtime/plimsoll_runtime/api/telemetry/metrics.py",
        "runtime/plimsoll_runtime/api/telemetry/engine_process.py",
        "runtime/plimsoll_runtime/api/telemetry/step_metrics.py",
        "runtime/plimsoll_runtime/api/telemetry/attention_metrics.py",
        "runtime/plimsoll_runtime/api/telemetry/memory_metrics.py",
        "runtime/plimsoll_runtime/api/telemetry/gpu_metrics.py",
        "runtime/plimsoll_runtime/api/batches/endpoint.py",
        "runtime/plimsoll_runtime/api/server/member_server.py",
    ),
    "Host": ("runtime/plimsoll_runtime/api/telemetry/host_metrics.py",),
    "Every process": ("operator/plimsoll_telemetry/process_metrics.py",),
    "Traces": ("operator/plimsoll_telemetry/tracer.py",),
}
"""Files that declare metrics, by the component that has them."""
KINDS = {
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "_counted": "counter",
    "_each": "gauge",
    "_times": "histogram",
    "bucketed": "histogram",
}
"""Metric types, by a word in the name of the function or class that creates the metric."""
OF_A_MODEL = ("_family", "_histogram", "_each", "_counted", "bucketed")
"""Functions whose metrics have the labels of a model alone."""
WITH_MORE_LABELS = ("labelled",)
"""Functions whose metrics have the labels of a model and those of a tuple that they get."""
MODEL_LABELS = ("namespace", "model")
UNITS = ("seconds", "bytes", "tokens", "blocks", "ratio")


@dataclass(frozen=True, order=True)
class Metric:
    """One metric. A counter's name ends in `_total`, as Prometheus shows it."""

    name: str
    kind: str = field(compare=False)
    labels: tuple[str, ...] = field(compare=False)
    text: str = field(compare=False)

    @property
    def unit(self) -> str:
        """The unit, which the name ends in; "" for counts of what the name says."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


def metrics_of(component: str) -> list[Metric]:
    """Return the metrics of a component, sorted by name. Raises ValueError for a declaration that cannot be read."""
    found = {metric.name: metric for file in COMPONENTS[component] for metric in _Reader(ROOT / file)}
    return sorted(found.values())


class _Reader:
    """Reads the declarations of one file: calls and tuples that have a metric's name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._values = [node for node in ast.walk(self._tree) if isinstance(node, ast.Assign)]

    def __iter__(self) -> Iterator[Metric]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                owner = self._parents[node]
                if not isinstance(owner, ast.Call | ast.Tuple):
                    raise ValueError(
                        f"{self._path}:{node.lineno}: write {node.value} in the call that creates the metric"
                    )
                yield self._metric(node.value, owner, node.lineno)

    def _metric(self, name: str, owner: ast.Call | ast.Tuple, line: int) -> Metric:
        parts = owner.args if isinstance(owner, ast.Call) else owner.elts
        texts = [text for part in parts if isinstance(text := self._value(part, line), str) and " " in text]
        maker = self._maker(owner)
        kind = next((kind for word, kind in KINDS.items() if word in maker.lower()), None)
        if not texts or kind is None:
            raise ValueError(f"{self._path}:{line}: {name} has no readable help text or type")
        ending = "_total" if kind == "counter" and not name.endswith("_total") else ""
        return Metric(name + ending, kind, self._labels(owner, maker, line), texts[0])

    def _maker(self, owner: ast.Call | ast.Tuple) -> str:
        """Return the name of the function or class that creates the metric. For a tuple, which is a row of a table, it
        is the name in the first cell, or the first call in the loop over the table.
        """
        if isinstance(owner, ast.Call):
            return ast.unparse(owner.func) + "".join(
                f" {one.id}" for one in owner.args[:1] if isinstance(one, ast.Name)
            )
        if isinstance(first := owner.elts[0], ast.Name):
            return first.id + " _family"
        loop: ast.AST = owner
        while not isinstance(loop, ast.For):
            loop = self._parents[loop]
        return next(ast.unparse(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call))

    def _labels(self, owner: ast.Call | ast.Tuple, maker: str, line: int) -> tuple[str, ...]:
        if any(word in maker for word in OF_A_MODEL):
            return MODEL_LABELS
        if isinstance(owner, ast.Tuple):
            return ()
        for part in (*owner.args[1:], *(word.value for word in owner.keywords if word.arg in ("labels", "labelnames"))):
            value = self._value(part, line)
            if isinstance(value, tuple):
                return (*MODEL_LABELS, *value) if any(word in maker for word in WITH_MORE_LABELS) else value
        return ()

    def _value(self, node: ast.expr, line: int) -> str | tuple[str, ...] | None:
        """Return a constant text or tuple of texts; for a name, the last value assigned to it above `line`."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id == "LABELS":
                return MODEL_LABELS
            above = [one for one in self._values if one.lineno < line and _assigns(one, node.id)]
            return self._value(max(above, key=lambda one: one.lineno).value, line) if above else None
        if isinstance(node, ast.Tuple | ast.List):
            texts: list[str] = []
            for part in node.elts:
                value = self._value(part.value if isinstance(part, ast.Starred) else part, line)
                if value is None:
                    return None
                texts += (value,) if isinstance(value, str) else value
            return tuple(texts)
        return None


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
