"""The figures of `gpu.run` as a table with one row per figure."""

from __future__ import annotations

from typing import Any

import tables
from tables import NOT_APPLICABLE, Sheet

HEADINGS = ("work", "time", "of the copy", "of the product", "of the roofline")


def table(result: dict[str, Any]) -> Sheet:
    """Return the table of the benchmarks that ran."""
    rows = [_kernel(f"attention: {row['name']}", row) for row in result.get("attention", [])]
    rows += [_candidate(row) for row in result.get("candidates", []) if "reason" not in row]
    rows += [_kernel(row["name"], row) for name in ("latent", "experts") for row in result.get(name, [])]
    rows += [_row(r["name"], f"{r['microseconds']:.1f} us", note=_times(r)) for r in result.get("sampling", [])]
    decodes = [*([result["decode"]] if "decode" in result else []), *result.get("batches", [])]
    rows += [
        _row(
            f"{row['name']}: {row['tokens_per_second']:.0f} tokens/s",
            f"{row['milliseconds']:.3f} ms",
            row["of_bandwidth"],
            roofline=row["of_roofline"],
        )
        for row in decodes
    ]
    for name in ("prefill", "chunks"):
        if found := result.get(name):
            title = f"prefill of {found['tokens']} in steps of {found['chunk']}"
            rows.append(_row(title, f"{found['milliseconds']:.1f} ms", rate=found["of_rate"]))
    rows += [_idle(row) for row in (*([result["idle"]] if "idle" in result else []), *result.get("host", []))]
    rows += _others(result)
    measured = result["limits"]
    title = f"Beside a copy's {measured['copy_gb_s']} GB/s and a product's {measured['product_tflop_s']} TFLOP/s"
    return Sheet(title, HEADINGS, rows)


def _others(result: dict[str, Any]) -> list[list[str]]:
    rows = []
    if found := result.get("mixed"):
        beside = found["absent"] or f"{found['ratio']:.2f}x Transformers"
        title = f"{found['requests']} mixed requests: {found['tokens_per_second']:.0f} tokens/s, {beside}"
        rows.append(_row(title, f"{found['seconds']:.2f} s", roofline=found["of_roofline"]))
    if found := result.get("users"):
        title = f"{found['users']} users, {found['requests']} requests: {found['of_offline']:.2f}x offline"
        rows.append(_row(title, f"{found['seconds']:.2f} s"))
        title = f"their first tokens: p99 {found['ttft_p99_of_bound']:.2f}x the burst's bound"
        rows.append(_row(title, f"{found['ttft_burst_ms']['p99']:.0f} ms"))
        title = f"between their tokens: p99 {found['itl_p99_of_median']:.2f}x the median"
        rows.append(_row(title, f"{found['itl_ms']['p99']:.1f} ms"))
    if found := result.get("sleep"):
        title = f"waking {found['gib']} GiB: {found['of_pinned']:.1%} of pinned memory's {found['pinned_gb_s']} GB/s"
        rows.append(_row(title, f"{found['wake_seconds']:.2f} s"))
        rows.append(_row("falling asleep", f"{found['sleep_seconds']:.2f} s"))
    if found := result.get("start"):
        rows.append(_row("first start to its first token", f"{found['cold_first_token_seconds']:.2f} s"))
        rows.append(_row("second start to its first token", f"{found['first_token_seconds']:.2f} s"))
    if found := result.get("memory"):
        came = found["ended"] or f"{found['steps']} steps, {found['preemptions']} preemptions"
        title = f"random load with {found['kv_use']:.1%} of the cache in use: {came}"
        rows.append(_row(title, f"{found['seconds']:.0f} s"))
        rows.append(_row(f"memory: {found['error']:.1%} from what was predicted", NOT_APPLICABLE))
    return rows


def _kernel(name: str, row: dict[str, Any]) -> list[str]:
    return _row(name, f"{row['microseconds']:.1f} us", row["of_bandwidth"], row["of_rate"])


def _candidate(row: dict[str, Any]) -> list[str]:
    title = f"{row['name']} by {row['backend']}, blocks of {row['block_size']}"
    return _row(title, f"{row['microseconds']:.1f} us", rate=row["of_rate"])


def _idle(row: dict[str, Any]) -> list[str]:
    title = f"{row['sequences']} after {row['prompt']}: idle for {row['idle']:.1%} of a step of {row['step_ms']:.2f} ms"
    return _row(title, f"{row['between_ms']:.3f} ms")


def _times(row: dict[str, Any]) -> str:
    return f"{row['of_reading']:.2f}x reading"


def _row(
    name: str,
    time: str,
    bandwidth: float | None = None,
    rate: float | None = None,
    roofline: float | None = None,
    *,
    note: str = "",
) -> list[str]:
    shares = [tables.NOT_APPLICABLE if share is None else f"{share:.1%}" for share in (bandwidth, rate, roofline)]
    return [name, time, note or shares[0], *shares[1:]]
