"""Steps on a fake GPU take the same path through the engine: from graphs, with late tokens."""

from __future__ import annotations

import pytest

from host_times import run
from options import Options
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.runners.gpu import AsyncResult


def test_every_phase_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(run, "CASES", ((2, 8, 1.0), (3, 40, 1.0)))
    replayed, late = [], []
    plain_run, plain_result = DecodeGraphs.run, AsyncResult.result

    def watched(self: DecodeGraphs, *args: object) -> object:
        hidden = plain_run(self, *args)  # type: ignore[arg-type]
        replayed.append(hidden is not None)
        return hidden

    def told(self: AsyncResult) -> object:
        late.append(self)
        return plain_result(self)

    monkeypatch.setattr(DecodeGraphs, "run", watched)
    monkeypatch.setattr(AsyncResult, "result", told)
    result = run.measure(Options(rounds=1, threads=1, scale=0.05, only=(), json=None))
    assert [(r["sequences"], r["prompt"]) for r in result["cases"]] == [(2, 8), (3, 40)]
    for row in result["cases"]:
        assert all(row[name] > 0 for name in (*(phase.name.lower() for phase in run.PHASES), "step"))
    assert sum(replayed) >= 2 * (run.BEFORE + 6)
    assert len(set(map(id, late))) >= 2 * (run.BEFORE + 6)
    assert len(run.table(result).rows) == 2
