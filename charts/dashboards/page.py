"""The declaration of a dashboard: rows of panels with their queries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Chart(StrEnum):
    """How a panel shows its queries. A heat map needs one query of a histogram's buckets by `le`."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    HEAT = "heat"
    TABLE = "table"
    NOTE = "note"


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and the name of its series with `{{label}}` for values of labels."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is one of Grafana's; `text` describes the panel, and is the content of a note. `width` and
    `height` are in cells of Grafana's grid, which is 24 wide.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    chart: Chart = Chart.LINES
    text: str = ""
    width: int = 8
    height: int = 8
    most: float | None = None


@dataclass(frozen=True)
class Row:
    """A row's title and panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice of the reader: the values of a label in the series that `series` selects."""

    name: str
    series: str
    several: bool = True

    @property
    def query(self) -> str:
        """The query for its values."""
        return f"label_values({self.series}, {self.name})"


@dataclass(frozen=True)
class Page:
    """One dashboard. `uid` is the name of its file and its identifier in Grafana."""

    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


NAMESPACE = Variable("namespace", "plimsoll_gateway_replicas")
MODEL = Variable("model", 'plimsoll_gateway_replicas{namespace=~"$namespace"}')
INSTANCE = Variable("instance", 'plimsoll_ready{namespace=~"$namespace"}')
OF_MODEL = 'namespace=~"$namespace", model=~"$model"'
OF_INSTANCE = 'instance=~"$instance"'


def rate(counter: str, selector: str, by: str = "") -> str:
    """Return the sum of a counter's rates, by labels."""
    return f"sum{_by(by)} (rate({counter}{{{selector}}}[$__rate_interval]))"


def total(gauge: str, selector: str, by: str = "") -> str:
    """Return the sum of a gauge, by labels."""
    return f"sum{_by(by)} ({gauge}{{{selector}}})"


def quantile(share: float, histogram: str, selector: str, by: str = "") -> str:
    """Return a quantile of a histogram, by labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', selector, labels)})"


def mean(histogram: str, selector: str, by: str = "") -> str:
    """Return the mean of a histogram's values, by labels."""
    return f"{rate(f'{histogram}_sum', selector, by)} / {rate(f'{histogram}_count', selector, by)}"


def quantiles(histogram: str, selector: str) -> tuple[Query, ...]:
    """Return queries for the median and two high quantiles."""
    return tuple(Query(quantile(share, histogram, selector), f"p{100 * share:.0f}") for share in (0.5, 0.95, 0.99))


def heat(title: str, histogram: str, selector: str, width: int = 12) -> Panel:
    """Return a heat map of a histogram of seconds."""
    query = Query(rate(f"{histogram}_bucket", selector, "le"), "{{le}}")
    return Panel(title, (query,), "s", Chart.HEAT, width=width)


def number(title: str, expr: str, unit: str = "short", text: str = "") -> Panel:
    """Return a panel with one number."""
    return Panel(title, (Query(expr),), unit, Chart.NUMBER, text, width=4, height=4)


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
