"""The rows of a plan's table about copies between two memories."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.report.table import ResultJson

_PROOFS = {"search": "by exact search", "relaxation": "parts of tensors may stay"}


def movement_rows(result: ResultJson) -> Iterator[tuple[str, str]]:
    """Yield the bytes that are copied between two memories, the bound and the times; nothing for a plan without copies."""
    movement = result.get("movement")
    if movement is None:
        return
    bound, moved = movement["lower_bound"], movement["bytes"]
    above = f"{(moved - bound) / bound:.1%} above the bound" if bound and moved > bound else "at the bound"
    copies = f"{len(movement['copies']):,} copies of {moved:,} bytes, {above}"
    yield f"{movement['fast']} and {movement['slow']}", copies
    proof = _PROOFS[movement["bound"]]
    wide = f"{movement['parts_bound']:,} in parts, {movement['any_order_bound']:,} in any order"
    yield "lower bound of the copies", f"{bound:,} bytes in this order ({proof}), {wide}"
    yield "first copies and outputs", f"{movement['forced']:,} bytes"
    time = movement["time"]
    if time is not None:
        yield "time of the copies", f"{_milliseconds(time['copying'])} at {time['bandwidth']:,} bytes per second"
    if time is not None and time["with_overlap"] is not None:
        yield (
            "time of the kernels",
            f"{_milliseconds(time['computing'])} at {time['macs_per_second']:,} MACs per second",
        )
        together, alone = (_milliseconds(time[key]) for key in ("with_overlap", "without_overlap"))
        yield "time of both", f"{together} side by side, {alone} one after the other"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.4g} ms"
