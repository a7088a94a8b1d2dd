"""The messages of KEDA's `externalscaler.proto`, and the paths of its service.

They are built from descriptors at run time, which needs neither a compiler nor generated code.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

SERVICE = "externalscaler.ExternalScaler"
_PACKAGE = "externalscaler"
_STRING, _BOOL = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BOOL
_INT64, _DOUBLE = FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_DOUBLE


def _add(message: DescriptorProto, name: str, number: int, kind: int | str, *, many: bool = False) -> None:
    """Add a field of a scalar type, or of the message type of that name."""
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = kind


def _described() -> FileDescriptorProto:
    file = FileDescriptorProto(name="externalscaler.proto", package=_PACKAGE, syntax="proto3")
    reference = file.message_type.add(name="ScaledObjectRef")
    entry = reference.nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, _STRING)
    _add(entry, "value", 2, _STRING)
    _add(reference, "name", 1, _STRING)
    _add(reference, "namespace", 2, _STRING)
    _add(reference, "scalerMetadata", 3, "ScaledObjectRef.ScalerMetadataEntry", many=True)
    _add(file.message_type.add(name="IsActiveResponse"), "result", 1, _BOOL)
    _add(file.message_type.add(name="GetMetricSpecResponse"), "metricSpecs", 1, "MetricSpec", many=True)
    spec = file.message_type.add(name="MetricSpec")
    _add(spec, "metricName", 1, _STRING)
    _add(spec, "targetSize", 2, _INT64)
    _add(spec, "targetSizeFloat", 3, _DOUBLE)
    request = file.message_type.add(name="GetMetricsRequest")
    _add(request, "scaledObjectRef", 1, "ScaledObjectRef")
    _add(request, "metricName", 2, _STRING)
    _add(file.message_type.add(name="GetMetricsResponse"), "metricValues", 1, "MetricValue", many=True)
    value = file.message_type.add(name="MetricValue")
    _add(value, "metricName", 1, _STRING)
    _add(value, "metricValue", 2, _INT64)
    _add(value, "metricValueFloat", 3, _DOUBLE)
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ScaledObjectRef = _message("ScaledObjectRef")
IsActiveResponse = _message("IsActiveResponse")
GetMetricSpecResponse = _message("GetMetricSpecResponse")
MetricSpec = _message("MetricSpec")
GetMetricsRequest = _message("GetMetricsRequest")
GetMetricsResponse = _message("GetMetricsResponse")
MetricValue = _message("MetricValue")
