"""What the peers find: run by a Python of one peer's environment, which need not have onnxtile. It prints one line of JSON.

PYTHON tests/bench/peer_side.py arena MODEL.onnx            onnxsim: the arena of the simplified model, and the tensors left out
PYTHON tests/bench/peer_side.py ranges MODEL.onnx NAME=LO:HI onnxsim.shape_cost: the arena and the peak over ranges of sizes
PYTHON tests/bench/peer_side.py offsets PROBLEM.csv greedy|hillclimb LIMIT   Vela: the arena of an allocator; the second ends at LIMIT bytes
PYTHON tests/bench/peer_side.py onnxscript MODEL.onnx OUT    onnxscript: ort_fusions
PYTHON tests/bench/peer_side.py onnxruntime MODEL.onnx OUT   onnxruntime: its own optimisations, up to the extended level
PYTHON tests/bench/peer_side.py aidge MODEL.onnx QUERY.toml ...  Aidge: how many meta-operators it fuses with each query
"""

from __future__ import annotations

import csv
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

_ITERATIONS = 99_999
"""Vela's default for its hill climb."""
_MOST_SECONDS = 5.0
"""Processor seconds of the hill climb, at most: then its best arena counts."""


def arena(model: str) -> dict[str, Any]:
    import onnx
    import onnxsim  # type: ignore[import-not-found, unused-ignore]

    simplified, _ = onnxsim.simplify(onnx.load(model))
    plan = onnxsim.plan_activation_memory(simplified)
    return {"arena": plan.arena_bytes, "left_out": len(plan.unplanned)}


def ranges(model: str, *dims: str) -> dict[str, Any]:
    from onnxsim.shape_cost import bounds  # type: ignore[import-not-found, unused-ignore]

    given = {name: tuple(map(int, ends.split(":"))) for name, ends in (dim.split("=") for dim in dims)}
    start = time.process_time()
    found = bounds(model, given)
    return {
        "arena": None if found.arena is None else found.arena.arena_bytes,
        "peak": found.peak_activation_bytes.hi,
        "unbounded": len(found.unbounded_tensors),
        "seconds": time.process_time() - start,
    }


def offsets(problem: str, allocator: str, limit: str) -> dict[str, Any]:
    with Path(problem).open() as file:
        rows = [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]
    # Both allocators take time and memory for each step: steps at which nothing begins or ends are left out.
    step = {
        time: place for place, time in enumerate(sorted({time for lower, upper, _ in rows for time in (lower, upper)}))
    }
    return _placed(allocator, [(step[lower], step[upper], size) for lower, upper, size in rows], int(limit))


def _placed(name: str, rows: list[tuple[int, int, int]], limit: int) -> dict[str, Any]:
    from ethosu.vela import greedy_allocation, hillclimb_allocation  # type: ignore[import-not-found, unused-ignore]
    from ethosu.vela.live_range import LiveRange  # type: ignore[import-not-found, unused-ignore]

    live_ranges = []
    for lower, upper, size in rows:
        one = LiveRange(None, 1)
        one.start_time, one.end_time, one.size = lower, upper - 1, size
        live_ranges.append(one)
    start, is_stopped = time.process_time(), False
    if name == "greedy":
        # It sorts tuples that end in live ranges, which have no order of their own: those of equal steps keep that of the file.
        order = {id(one): place for place, one in enumerate(live_ranges)}
        LiveRange.__lt__ = lambda one, other: order[id(one)] < order[id(other)]
        size = greedy_allocation.allocate_live_ranges(type("Group", (), {"lrs": live_ranges}), 1)
    else:
        climb = hillclimb_allocation.HillClimbAllocator(live_ranges, _ITERATIONS, limit)
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)
        try:
            climb.allocate()
        except TimeoutError:
            is_stopped = True
        signal.setitimer(signal.ITIMER_PROF, 0)
        size = max(address + row[2] for address, row in zip(climb.allocated_addresses, rows, strict=True))
    return {"arena": size, "seconds": time.process_time() - start, "stopped": is_stopped}


def _stop(_signal: int, _frame: object) -> None:
    raise TimeoutError


def onnxscript(model: str, target: str) -> dict[str, Any]:
    import onnx_ir
    from onnxscript.rewriter import ort_fusions  # type: ignore[import-not-found, unused-ignore]

    fused, counts = ort_fusions.optimize_for_ort(onnx_ir.load(model))
    onnx_ir.save(fused, target)
    return {"counts": {str(name): count for name, count in dict(counts).items()}}


def onnxruntime(model: str, target: str) -> dict[str, Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = target
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return {}


def aidge(model: str, *queries: str) -> dict[str, Any]:
    import tomllib

    import aidge_core  # type: ignore[import-not-found, unused-ignore]
    import aidge_onnx  # type: ignore[import-not-found, unused-ignore]

    aidge_core.Log.set_console_level(aidge_core.Level.Fatal)
    view = aidge_onnx.load_onnx(Path(model).read_bytes())
    counts = []
    for path in map(Path, queries):
        (variant,) = tomllib.loads(path.read_text("utf-8"))["variants"]
        counts.append(aidge_core.fuse_to_metaops(view, variant["query"], path.stem))
    return {"counts": counts}


if __name__ == "__main__":
    tools = {"arena": arena, "ranges": ranges, "offsets": offsets}
    tools |= {"onnxscript": onnxscript, "onnxruntime": onnxruntime, "aidge": aidge}
    answer = tools[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
