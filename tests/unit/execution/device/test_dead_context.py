"""If a device has failed, no other backend replaces the failed one, and the error names the op."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from kernel_support.recorder import Recorder

from plimsoll_runtime.execution.attention import selection
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionError, create_backend, prepare_step
from plimsoll_runtime.execution.attention.capabilities import Capabilities
from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass
from plimsoll_runtime.execution.graphs.capture import NO_GRAPHS
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.parts import StepParts

FAULT = "CUDA error: an illegal memory access was encountered"


class Failing:
    """A backend whose steps start and then fail."""

    name: ClassVar[str] = "failing"
    fused: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = Capabilities()
    error: ClassVar[Exception] = torch.AcceleratorError(FAULT)

    def __init__(self, cache: Any) -> None:
        pass

    def begin(self, batch: Any) -> Any:
        def attention(*_given: Any) -> Any:
            raise self.error

        return attention


class Beside(Failing):
    """Another backend, which must not be used."""

    def __init__(self, cache: Any) -> None:
        raise AssertionError("another backend was tried")


def attend(attention: Any, *_given: Any) -> Any:
    return attention(0, None, None, None)


@pytest.mark.parametrize(
    "error",
    [torch.AcceleratorError(FAULT), RuntimeError("Triton Error [CUDA]: out of memory")],
    ids=["fault", "memory"],
)
def test_no_other_backend_is_tried(error: Exception) -> None:
    kind: Any = type("Made", (Failing,), {"error": error})
    beside: Any = Beside
    decoder: Any = lambda token_ids, positions, attention: attend(attention)  # noqa: E731
    cache: Any = None
    forward_pass = ForwardPass(StepParts(decoder, cache), [kind, beside])
    given: Any = None
    with pytest.raises(type(error)) as caught:
        forward_pass.run(StepInputs(given, given, given))
    assert caught.value is error
    assert forward_pass.fallbacks == 0


def test_where_nothing_more_is_known_the_backend_is_named() -> None:
    given: Any = None
    backend: AttentionBackend = create_backend(Failing, given)
    with pytest.raises(torch.AcceleratorError) as caught:
        prepare_step(backend, given)(0, given, given, given)
    assert " at or before plimsoll_runtime.execution.attention.base." in fault_of(caught.value).text


def test_other_errors_are_the_backends() -> None:
    given: Any = None
    kind: Any = type(
        "Made", (Failing,), {"error": torch.AcceleratorError("CUDA error: invalid configuration argument")}
    )
    with pytest.raises(AttentionError, match="the attention backend failing failed with AcceleratorError"):
        prepare_step(create_backend(kind, given), given)(0, given, given, given)


def test_a_graph_is_not_given_up_for_it() -> None:
    forward_pass: Any = object.__new__(GraphForwardPass)
    graphs: object = Recorder()
    forward_pass._graphs = graphs
    fault = torch.AcceleratorError(FAULT)
    with pytest.raises(torch.AcceleratorError):
        forward_pass._give_up_graphs(fault)
    assert forward_pass._graphs is graphs
    forward_pass._give_up_graphs(RuntimeError("cannot be captured"))
    assert forward_pass._graphs is NO_GRAPHS


def test_a_trial_at_the_start_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_given: Any) -> None:
        raise torch.AcceleratorError(FAULT)

    monkeypatch.setattr(selection, "check", check)
    given: Any = None
    with pytest.raises(torch.AcceleratorError):
        selection._try(Failing, given, given, given, given)
