"""Makes traces of the loads, wakes and recorded steps of a host's models."""

from __future__ import annotations

from plimsoll_runtime.api.telemetry.start_reporter import StartReporter
from plimsoll_runtime.api.telemetry.step_reporter import StepReporter
from plimsoll_runtime.engine.protocol.messages import EngineInfo, TracedStep
from plimsoll_runtime.engine.step_tracing import StepTracing
from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils.start_record import StartRecord
from plimsoll_telemetry import attributes as names
from plimsoll_telemetry.span import Attributes


class HostTraces:
    """An `Observer` of a host's engines, of which `step_tracing` says which steps they record."""

    def __init__(self, step_tracing: StepTracing, steps: StepReporter, starts: StartReporter) -> None:
        self.step_tracing = step_tracing
        self._steps = steps
        self._starts = starts

    def step_traced(self, name: ModelName, step: TracedStep, info: EngineInfo) -> None:
        """Report a recorded step of a model."""
        self._steps.report(step, info, _about(name))

    def started(
        self, name: ModelName, record: StartRecord, info: EngineInfo | None, error: BaseException | None
    ) -> None:
        """Report a start of a model that has ended."""
        self._starts.ended(record, _about(name), info, error)


def _about(name: ModelName) -> Attributes:
    return {names.NAMESPACE: name.namespace, names.MODEL: name.name}
