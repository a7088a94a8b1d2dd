"""Builds the JSON of dashboards with Grafana's own SDK, which knows the fields of each kind of panel."""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from dashboards import cluster, cold_starts, gateway, model, operator_placement, runtime
from dashboards.page import Chart, Page, Panel, Query, Variable

PAGES: tuple[Page, ...] = (
    cluster.PAGE,
    model.PAGE,
    runtime.PAGE,
    gateway.PAGE,
    operator_placement.PAGE,
    cold_starts.PAGE,
)
SOURCE = DataSourceRef("prometheus", "${datasource}")
TAG = "plimsoll"
_Built = timeseries.Panel | stat.Panel | heatmap.Panel | table.Panel | text.Panel


def files() -> dict[str, str]:
    """Return the JSON of each dashboard by the name of its file."""
    return {f"{page.uid}.json": json_text(page) for page in PAGES}


def json_text(page: Page) -> str:
    """Return the JSON of a dashboard."""
    return JSONEncoder(sort_keys=True, indent=1).encode(_built(page)) + "\n"


def _built(page: Page) -> object:
    builder = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.text)
        .tags([TAG])
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Plimsoll")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in page.variables:
        builder.with_variable(_variable(variable))
    number = 0
    for row in page.rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            number += 1
            builder.with_panel(_PANELS[panel.chart](panel).id(number))
    return builder.build()


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.name.capitalize())
        .datasource(SOURCE)
        .query(variable.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(True, "All", "$__all"))
    )


def _query(query: Query, at: int) -> prometheus.Dataquery:
    found = prometheus.Dataquery().datasource(SOURCE).expr(query.expr).ref_id(chr(ord("A") + at)).range()
    return found.legend_format(query.legend) if query.legend else found


def _lines(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
        .min(0)
        .fill_opacity(10)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if panel.most is not None:
        built.max(panel.most)
    for at, query in enumerate(panel.queries):
        built.with_target(_query(query, at))
    return built


def _stack(panel: Panel) -> timeseries.Panel:
    return _lines(panel).stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)


def _number(panel: Panel) -> stat.Panel:
    (query,) = panel.queries
    return (
        stat.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
        .graph_mode(BigValueGraphMode.AREA)
        .with_target(_query(query, 0))
    )


def _heat(panel: Panel) -> heatmap.Panel:
    (query,) = panel.queries
    return (
        heatmap.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .span(panel.width)
        .height(panel.height)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .with_target(_query(query, 0).format(PromQueryFormat.HEATMAP))
    )


def _table(panel: Panel) -> table.Panel:
    built = (
        table.Panel()
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .span(panel.width)
        .height(panel.height)
    )
    for at, query in enumerate(panel.queries):
        built.with_target(_query(query, at).instant().format(PromQueryFormat.TABLE))
    return built


def _note(panel: Panel) -> text.Panel:
    return (
        text.Panel()
        .title(panel.title)
        .span(panel.width)
        .height(panel.height)
        .mode(TextMode.MARKDOWN)
        .content(panel.text.strip())
    )


_PANELS: dict[Chart, Callable[[Panel], _Built]] = {
    Chart.LINES: _lines,
    Chart.STACK: _stack,
    Chart.NUMBER: _number,
    Chart.HEAT: _heat,
    Chart.TABLE: _table,
    Chart.NOTE: _note,
}
