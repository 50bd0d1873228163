"""What tile costs: time and memory on AlexNet of real size, time by the number of tiles, what onnxruntime makes of the result, Aidge.

    python -m tests.bench.tile_speed [--runs 3] [--max 128] [--aidge PYTHON] [PART ...]

PARTS are alexnet, growth, runtime (with tiles of --max) and aidge, all by default. Times are processor seconds of user and system together,
as the machine may be shared, medians of the runs, of AlexNet the least; what is compared runs in turn, each in a process of its own where
memory counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.tiling.limits import Accumulation, Limits
from tests.bench.alexnet import LIGHT, make

LOAD_AND_SAVE = "import onnx, sys; onnx.save(onnx.load(sys.argv[1]), sys.argv[2])"
# Not getrusage's maximum, which a new process takes over from the one that started it.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
FROM_COMMAND = "import sys; from onnxtile.cli import main; sys.argv = ['onnxtile', *sys.argv[1:]]"


def seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def in_process(code: str, *arguments: str | Path) -> tuple[float, float, int]:
    """Run `code` in a process of its own; return its processor time, the time on the clock, and its peak resident memory in bytes."""
    clock, start = time.perf_counter(), seconds()
    script = f"import atexit\natexit.register(lambda: exec({PEAK!r}))\n{code}"
    run = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return seconds() - start, time.perf_counter() - clock, int(run.stdout.split()[-1]) * 1024


def alexnet(runs: int, folder: Path) -> None:
    """Print time and memory of the whole command beside those of onnx, which only loads and saves."""
    source, target = folder / "alexnet.onnx", folder / "out.onnx"
    weights = make(source)
    command = f"{FROM_COMMAND}; main()"
    options = ("tile", source, "-o", target, "--max", "64", "--no-verify", "-q")
    rows: dict[str, list[tuple[float, float, int]]] = {"onnx, load and save": [], "onnxtile tile --max 64": []}
    for _ in range(runs):
        for name, code, arguments in zip(rows, (LOAD_AND_SAVE, command), ((source, target), options), strict=True):
            target.unlink(missing_ok=True)
            rows[name].append(in_process(code, *arguments))
    print("| AlexNet, 61 M parameters | processor s | clock s | resident, times the weights |\n|---|---:|---:|---:|")
    least = {name: [min(column) for column in zip(*times, strict=True)] for name, times in rows.items()}
    for name, (cpu, clock, resident) in least.items():
        print(f"| {name} | {cpu:.2f} | {clock:.2f} | {resident / weights:.2f} |")
    (cpu, clock, _), (ours, our_clock, _) = least.values()
    print(f"| ratio | {ours / cpu:.2f} | {our_clock / clock:.2f} | |\n")


def product(m: int, k: int, n: int) -> onnx.ModelProto:
    """Return a model of one MatMul with a constant right operand."""
    weight = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", 1, [m, k])],
        [helper.make_tensor_value_info("y", 1, [m, n])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def growth(runs: int, folder: Path) -> None:
    """Print the time to tile and to save by the number of tiles of 8 × 8 × 8."""
    print("| tiles | tile, s | save, s | µs a tile | growth of a tile's time |\n|---:|---:|---:|---:|---:|")
    before: float | None = None
    for k, n in ((256, 256), (800, 800), (2528, 2528)):
        model = load(product(8, k, n))
        tiles = (k // 8) * (n // 8)
        cut, saved = [], []
        for _ in range(runs):
            start = seconds()
            tiled = api.tile(model, Limits.of(max=8), verify=False)
            middle = seconds()
            api.save(tiled.model, folder / "grown.onnx", force=True)
            cut.append(middle - start)
            saved.append(seconds() - middle)
        total = statistics.median(cut) + statistics.median(saved)
        each = total / tiles
        grown = "" if before is None else f"{each / before:.2f}"
        print(
            f"| {tiles:,} | {statistics.median(cut):.2f} | {statistics.median(saved):.2f} | {each * 1e6:.0f} | {grown} |"
        )
        before = each
    print()


def session(model: bytes, level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def runtime(runs: int, most: int) -> None:
    """Print how long onnxruntime takes to load and to run AlexNet, whole and tiled at `most`, for each way to accumulate."""
    levels = onnxruntime.GraphOptimizationLevel
    image = {"data_0": np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    variants = {"whole": LIGHT.read_bytes()}
    for way in Accumulation:
        tiled = api.tile(LIGHT, Limits.of(max=most), accumulate=way, verify=False)
        variants[f"tiled, {way} ({tiled.nodes_after:,} nodes)"] = to_bytes(tiled.model)
    print(
        f"| AlexNet at {most} | load, optimisation off, s | load, all on, s | run, off, ms | run, on, ms |\n|---|---:|---:|---:|---:|"
    )
    for name, model in variants.items():
        cells = []
        for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
            start = seconds()
            loaded = session(model, level)
            load_time = seconds() - start
            latencies = []
            for _ in range(runs + 2):
                start = seconds()
                loaded.run(None, image)
                latencies.append(seconds() - start)
            cells.append((load_time, statistics.median(latencies[2:]) * 1000))
        (off, off_run), (on, on_run) = cells
        print(f"| {name} | {off:.2f} | {on:.2f} | {off_run:.0f} | {on_run:.0f} |")
    print()


def aidge(runs: int, python: str) -> None:
    """Print the time and the nodes of Aidge's matMul_tiling beside ours; Aidge cuts M and N only, so K is left whole here too."""
    script = Path(__file__).with_name("aidge_tiling.py")
    print("| M, K, N at 32 × 32 | Aidge, s | its nodes | onnxtile, s | its nodes |\n|---|---:|---:|---:|---:|")
    for m, k, n in ((512, 512, 512), (1024, 256, 1024), (2048, 256, 2048)):
        theirs: list[dict[str, Any]] = []
        for _ in range(runs):
            run = subprocess.run([python, script, *map(str, (m, k, n, 32))], capture_output=True, text=True, check=True)
            theirs.append(json.loads(run.stdout.splitlines()[-1]))
        model, ours = load(product(m, k, n)), []
        for _ in range(runs):
            start = time.perf_counter()
            result = api.tile(model, Limits.of(m=32, n=32), verify=False)
            ours.append(time.perf_counter() - start)
        nodes = sum(count for kind, count in theirs[0]["nodes"].items() if kind != "Producer")
        their_time = statistics.median(one["seconds"] for one in theirs)
        print(
            f"| {m}, {k}, {n} | {their_time:.2f} | {nodes:,} | {statistics.median(ours):.2f} | {result.nodes_after:,} |"
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max", type=int, default=128)
    parser.add_argument("--aidge", metavar="PYTHON")
    parser.add_argument("parts", nargs="*", default=[], metavar="PART")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in given.parts or ("alexnet", "growth", "runtime", "aidge"):
            if part == "aidge" and given.aidge:
                aidge(given.runs, given.aidge)
            elif part == "runtime":
                runtime(given.runs, given.max)
            elif part != "aidge":
                {"alexnet": alexnet, "growth": growth}[part](given.runs, Path(folder))


if __name__ == "__main__":
    main()
