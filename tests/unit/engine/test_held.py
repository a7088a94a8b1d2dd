"""Requests whose constraint is being compiled delay no other requests, and are not lost."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from builders import drain, make_core, request, tokens_of

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestOutput, Vocabulary
from plimsoll_runtime.errors import UsageError


class SlowCompiler:
    """A compiler that finishes when a test says so."""

    def __init__(self) -> None:
        self.vocabulary: Vocabulary | None = None
        self.asked: dict[Constraint, Future[Any]] = {}

    def use(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    def prepare(self, constraint: Constraint) -> Future[Any]:
        return self.asked.setdefault(constraint, Future())


def constrained(name: str, pattern: str = "a*", **options: Any) -> AddRequest:
    return request(name, [1, 2, 3], ignore_eos=False, constraint=Constraint.regex(pattern), **options)


@pytest.fixture
def compiler() -> SlowCompiler:
    return SlowCompiler()


@pytest.fixture
def core(compiler: SlowCompiler) -> EngineCore:
    return make_core(compiler=compiler)[0]


def steps(core: EngineCore, count: int) -> list[RequestOutput]:
    return [output for _ in range(count) for output in core.step().outputs]


def test_others_go_on_and_are_not_behind_it(core: EngineCore, compiler: SlowCompiler) -> None:
    core.add(constrained("slow"))
    core.add(request("plain", [4, 5], max_tokens=3))
    heard = steps(core, 4)
    assert {o.request_id for o in heard} == {"plain"}
    assert heard[-1].finish_reason == "length"
    assert core.has_work
    assert core.stats.waiting == 1
    compiler.asked[Constraint.regex("a*")].set_result(None)
    assert tokens_of(drain(core)["slow"])
    assert not core.has_work


def test_what_cannot_be_compiled_is_told_to_its_client_alone(core: EngineCore, compiler: SlowCompiler) -> None:
    core.add(constrained("good", "a"))
    core.add(constrained("bad", "b"))
    compiler.asked[Constraint.regex("a")].set_result(None)
    compiler.asked[Constraint.regex("b")].set_exception(ConstraintError("is too large"))
    heard = drain(core)
    [end] = heard["bad"]
    assert (end.finish_reason, end.error, end.token_ids) == ("error", "the constraint is too large", [])
    assert heard["good"][-1].finish_reason in ("stop", "length")
    assert not core.has_work


def test_aborted_while_it_is_held(core: EngineCore, compiler: SlowCompiler) -> None:
    core.add(constrained("r"))
    core.abort(["r", "unknown"])
    assert not core.has_work
    compiler.asked[Constraint.regex("a*")].set_result(None)
    assert drain(core) == {}
    core.add(constrained("r"))
    assert drain(core)["r"]


def test_an_id_is_used_once(core: EngineCore, compiler: SlowCompiler) -> None:
    core.add(constrained("held"))
    with pytest.raises(UsageError, match="'held' is in use"):
        core.add(constrained("held"))
    core.add(request("held", [7, 8], max_tokens=2))
    compiler.asked[Constraint.regex("a*")].set_result(None)
    told = [o.error for o in steps(core, 1) if o.error]
    assert told == ["request id 'held' is in use; give every request a unique id"]


def test_a_deadline_that_passes_meanwhile(core: EngineCore, compiler: SlowCompiler) -> None:
    core.add(constrained("late", deadline=1e-9))
    compiler.asked[Constraint.regex("a*")].set_result(None)
    [end] = drain(core)["late"]
    assert end.finish_reason == "deadline"


def test_the_vocabulary_goes_to_the_compiler(core: EngineCore, compiler: SlowCompiler) -> None:
    told = Vocabulary(b"ab", b"", [], [1])
    core.use(told)
    assert compiler.vocabulary == told


def test_an_engine_without_a_compiler_refuses() -> None:
    core, _ = make_core()
    core.use(Vocabulary(b"", b"", [], [1]))
    with pytest.raises(UsageError, match="no grammar compiler"):
        core.add(constrained("r"))
