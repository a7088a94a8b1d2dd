"""The pool is resized while sequences run: no sequence is lost, and none reads removed blocks."""

from __future__ import annotations

import pytest
from builders import BLOCK_BYTES, drain, make_core, request, tokens_of
from simulated import SimulatedRunner, oracle

from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.messages import RequestOutput
from plimsoll_runtime.engine.scheduler.batch_builder import Step
from plimsoll_runtime.engine.scheduler.scheduler import Scheduler
from plimsoll_runtime.errors import EngineDeadError, UsageError

PROMPTS = {f"r{i}": [(7 * i + j) % 40 for j in range(24)] for i in range(4)}


def core_of(**options: object) -> tuple[EngineCore, SimulatedRunner]:
    return make_core(num_blocks=65, max_model_len=40, least_blocks=11, most_blocks=100, **options)  # type: ignore[arg-type]


def blocks(core: EngineCore) -> int:
    return core.stats.blocks_total + 1


def under_way(core: EngineCore) -> bool:
    """Return whether the cache does not have the requested size yet."""
    return core.resizing


@pytest.mark.parametrize("overlap", [False, True])
def test_sequences_that_run_are_moved_and_go_on(overlap: bool) -> None:
    core, runner = core_of(overlap=overlap, max_batch_tokens=100)
    requests = {name: request(name, prompt, max_tokens=12) for name, prompt in PROMPTS.items()}
    # Fill low blocks first, so that the blocks that stay have high numbers.
    core.add(request("first", list(range(30)), max_tokens=1))
    drain(core)
    for each in requests.values():
        core.add(each)
    told = {name: [] for name in requests}  # type: ignore[var-annotated]
    for _ in range(8):
        for output in core.step().outputs:
            told[output.request_id].append(output)
    core.resize(33 * BLOCK_BYTES)
    assert under_way(core)
    while core.has_work:
        for output in core.step().outputs:
            told[output.request_id].append(output)
    assert blocks(core) == 33
    assert {len(layer) for layer in runner.layers} == {33}
    assert runner.moves > 0
    for name, each in requests.items():
        assert tokens_of(told[name]) == oracle(each, 40).token_ids


def test_a_merge_under_way_finds_its_block_where_it_was_moved_to() -> None:
    """Two equal sequences fill equal blocks in one step; before it ends, the block that both will share moves."""
    limits = Limits(num_blocks=65, block_size=4, max_len=40, max_batch_tokens=200, max_sequences=8)
    scheduler, runner = Scheduler(limits), SimulatedRunner(65, 4, 200, 8)
    names = ["r1", "r2"]
    told: dict[str, list[RequestOutput]] = {name: [] for name in names}

    def finish(step: Step) -> None:
        for output in scheduler.commit(step, runner.run(step.plan)):
            if output.request_id in told:
                told[output.request_id].append(output)

    def plan() -> Step:
        step = scheduler.schedule()
        assert step is not None
        return step

    for name, prompt in PROMPTS.items():
        scheduler.add(request(f"before-{name}", prompt))
    finish(plan())
    same = {name: request(name, [1, 2, 3, 4, 5, 6, 7], max_tokens=20) for name in names}
    for each in same.values():
        scheduler.add(each)
    finish(plan())
    scheduler.abort([f"before-{name}" for name in PROMPTS])
    merging = plan()
    assert merging.merges
    bearer = merging.merges[0].block
    scheduler.resize(11)
    resizing = plan()
    assert bearer in dict(resizing.plan.moves), "it was moved"
    scheduler.check_integrity([merging, resizing])
    finish(merging)
    finish(resizing)
    scheduler.check_integrity()
    while len(scheduler):
        finish(plan())
        scheduler.check_integrity()
    for name, each in same.items():
        assert tokens_of(told[name]) == oracle(each, 40).token_ids


def test_blocks_in_use_are_moved_and_keep_their_names() -> None:
    core, runner = core_of(max_sequences=1, max_batch_tokens=64)
    core.add(request("long", PROMPTS["r0"], max_tokens=16))
    core.step()
    held = core.stats.blocks_used
    core.resize(11 * BLOCK_BYTES)
    drain(core)
    assert blocks(core) == 11
    core.add(request("again", PROMPTS["r0"], max_tokens=2))
    [output, *_] = drain(core)["again"]
    assert output.cached_tokens == 23, "the prefix is found after its blocks were moved"
    assert held < 11
    # The pool allocates its first blocks first, so used blocks are in front, and nothing had to move.
    assert runner.moves == 0
    core.resize(65 * BLOCK_BYTES)
    drain(core)
    assert blocks(core) == 65


def test_it_shrinks_as_far_as_it_can_and_by_the_rest_as_sequences_end() -> None:
    core, runner = core_of(max_batch_tokens=100)
    for name, prompt in PROMPTS.items():
        core.add(request(name, prompt, max_tokens=16 if name == "r0" else 3))
    core.step()
    used = core.stats.blocks_used
    assert used > 20
    core.resize(11 * BLOCK_BYTES)
    core.step()
    assert blocks(core) == used + 1
    assert under_way(core)
    assert core.kv_bytes == (used + 1) * BLOCK_BYTES
    outputs = drain(core)
    assert not under_way(core)
    assert blocks(core) == 11
    assert {len(layer) for layer in runner.layers} == {11}
    assert set(outputs) == set(PROMPTS)


def test_an_engine_without_work_does_it_at_once() -> None:
    core, runner = core_of()
    for size in (30, 100, 11):
        core.resize(size * BLOCK_BYTES + BLOCK_BYTES - 1)
        assert under_way(core)
        core.step()
        assert not core.has_work
        assert len(runner.layers[0]) == size
    core.resize(11 * BLOCK_BYTES)
    core.step()
    assert not core.has_work


def test_the_latest_word_counts() -> None:
    core, runner = core_of()
    core.resize(20 * BLOCK_BYTES)
    core.resize(50 * BLOCK_BYTES)
    drain(core)
    assert len(runner.layers[0]) == 50


@pytest.mark.parametrize("size", [10, 101])
def test_a_size_that_it_cannot_have_is_refused_with_the_numbers(size: int) -> None:
    core, _ = core_of()
    with pytest.raises(UsageError, match=rf"can have 1100 to 10000 bytes, not {size}00: .* sequence of 40 tokens"):
        core.resize(size * BLOCK_BYTES)
    assert not core.has_work


def test_without_bounds_it_keeps_its_size() -> None:
    core, _ = make_core(num_blocks=65)
    core.resize(65 * BLOCK_BYTES)
    with pytest.raises(UsageError, match="can have 6500 to 6500 bytes"):
        core.resize(64 * BLOCK_BYTES)


def test_after_a_failure_nothing_is_resized() -> None:
    core, runner = core_of()
    runner.failure = RuntimeError("gone")
    core.add(request("r", [1, 2, 3]))
    with pytest.raises(EngineDeadError):
        core.step()
    with pytest.raises(EngineDeadError):
        core.resize(20 * BLOCK_BYTES)
