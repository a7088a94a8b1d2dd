"""The OTEL_* variables: what each does, and errors that name variable and value."""

from __future__ import annotations

import pytest

from plimsoll_telemetry.settings import TracingSettings, TracingSettingsError, read_settings

ON = {"OTEL_TRACES_EXPORTER": "otlp"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
        {"OTEL_SDK_DISABLED": "true", **ON},
        {"OTEL_SDK_DISABLED": " TRUE ", **ON},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "parentbased_always_on"},
    ],
)
def test_off(environment: dict[str, str]) -> None:
    assert read_settings(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        ON,
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"},
        {"OTEL_SDK_DISABLED": "false", **ON},
        {"OTEL_SDK_DISABLED": "1", **ON},
        {"OTEL_TRACES_EXPORTER": " otlp "},
    ],
)
def test_on_with_the_defaults(environment: dict[str, str]) -> None:
    assert read_settings(environment) == TracingSettings()


@pytest.mark.parametrize(
    ("environment", "changes"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, {"exporter": "zipkin"}),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"protocol": "grpc"}),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            {"protocol": "http/protobuf"},
        ),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, {"ratio": 1.0}),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, {"ratio": 0.0}),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, {"ratio": 1.0}),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, {"ratio": 0.25}),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "10"}, {"queue": 10}),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "20"}, {"batch": 20}),
        ({"OTEL_BSP_SCHEDULE_DELAY": "250"}, {"delay": 0.25}),
        ({"OTEL_EXPORTER_ZIPKIN_ENDPOINT": "http://z/api/v2/spans"}, {"zipkin": "http://z/api/v2/spans"}),
        ({"OTEL_EXPORTER_ZIPKIN_TIMEOUT": "2500"}, {"zipkin_timeout": 2.5}),
        ({"OTEL_SERVICE_NAME": "mine"}, {"service": "mine"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=his%20own"}, {"service": "his own"}),
        ({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=his"}, {"service": "mine"}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "nonsense,=,service.name"}, {}),
    ],
)
def test_each_variable(environment: dict[str, str], changes: dict[str, object]) -> None:
    found = read_settings({**ON, **environment}, 5.0, content=True)
    assert found == TracingSettings(**{"most": 5.0, "content": True, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "rest"),
    [
        ("OTEL_TRACES_EXPORTER", "jaeger", {}),
        ("OTEL_TRACES_EXPORTER", "otlp,zipkin", {}),
        ("OTEL_TRACES_SAMPLER", "always_on", ON),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", ON),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "udp", ON),
        *(
            ("OTEL_TRACES_SAMPLER_ARG", value, {**ON, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"})
            for value in ("half", "1.1", "-0.1", "nan", "inf")
        ),
        *(("OTEL_BSP_MAX_QUEUE_SIZE", value, ON) for value in ("0", "-1", "many", "2000000")),
        *(("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", value, ON) for value in ("0", "x", "1e9")),
        *(("OTEL_BSP_SCHEDULE_DELAY", value, ON) for value in ("-1", "0", "soon")),
        *(("OTEL_EXPORTER_ZIPKIN_TIMEOUT", value, ON) for value in ("0", "never")),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(name: str, value: str, rest: dict[str, str]) -> None:
    with pytest.raises(TracingSettingsError) as caught:
        read_settings({**rest, name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "must be" in str(caught.value)
