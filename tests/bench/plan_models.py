"""Plans real models through the command line, beside onnxsim's planner: a table in Markdown.

    python -m tests.bench.plan_models [--dinov2 FILE] [MODEL.onnx ...]

Without models: onnx's light ones, rapidocr's detector and recogniser, and FILE, which make_dinov2_small.py of the zoo makes; some of them
also fused first. Bytes at an alignment of 64; weights and graph inputs outside, outputs live to the end. onnxsim does not align, and counts
graph inputs as well; "left out" are tensors that it gives no place. It takes what nodes make of constants alone for activations (the light
models make their weights so), and is therefore given a file in which these are initializers. The time is that of the whole command, with
the run inside the arena and with --no-verify, over that of a Python process that loads the model, plans it with onnxsim and ends.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import Shapes, resolve

LIGHT = (
    *("resnet50", "densenet121", "squeezenet", "inception_v1", "inception_v2", "shufflenet", "vgg19", "zfnet512"),
    "bvlc_alexnet",
)
OCR = {"ch_PP-OCRv4_det_infer": (1, 3, 640, 640), "ch_PP-OCRv4_rec_infer": (1, 3, 48, 320)}

ONNXSIM = """
import json, sys, onnx, onnxsim
plan = onnxsim.plan_activation_memory(onnx.load(sys.argv[1]))
print(json.dumps([plan.arena_bytes, len(plan.unplanned)]))
"""


@dataclass(frozen=True)
class Task:
    """A model, the shape that its input `x` is to have (none where it has one), and how it is planned."""

    name: str
    path: Path
    shape: tuple[int, ...] = ()
    options: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--dinov2", type=Path)
    given = parser.parse_args(arguments)
    print(
        "| model | arena | lower bound | optimal | unplanned | onnxsim (left out) | time / onnxsim | without the run |"
    )
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        own = [Task(path.stem, path) for path in given.models]
        for task in own or known(given.dinov2, Path(folder)):
            print(row(task, Path(folder)), flush=True)


def known(dinov2: Path | None, folder: Path) -> Iterator[Task]:
    """Yield the models of the table."""
    light = package("onnx") / "backend/test/data/light"
    for name in LIGHT:
        yield Task(name, light / f"light_{name}.onnx")
    yield Task("shufflenet, min-peak", light / "light_shufflenet.onnx", options=("--order", "min-peak"))
    yield Task("resnet50, fused", fused(light / "light_resnet50.onnx", folder))
    for name, shape in OCR.items():
        yield Task(name, package("rapidocr_onnxruntime") / "models" / f"{name}.onnx", shape)
    if dinov2 is not None:
        yield Task("DINOv2-small", dinov2)
        yield Task("DINOv2-small, fused", fused(dinov2, folder))


def package(name: str) -> Path:
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def fused(path: Path, folder: Path) -> Path:
    """Return `path` with its meta-ops."""
    target = folder / f"{path.stem}.fused.onnx"
    subprocess.run([*command("fuse"), str(path), "-o", str(target), "-q"], check=True, stdout=subprocess.DEVNULL)
    return target


def command(verb: str) -> list[str]:
    """Return how `onnxtile VERB` is called."""
    return [sys.executable, "-m", "onnxtile", verb]


def row(task: Task, folder: Path) -> str:
    """Return the row of `task`."""
    shape = "x".join(map(str, task.shape))
    options = [*task.options, *(["--shape", f"x={shape}"] if shape else [])]
    document = folder / "plan.json"
    ours = [*command("plan"), str(task.path), "--dry-run", "-q", "--json", str(document), *options]
    verified, plain = seconds(ours), seconds([*ours, "--no-verify"])
    plan = json.loads(document.read_text())
    theirs = [
        sys.executable,
        "-c",
        ONNXSIM,
        str(for_onnxsim(task.path, {"x": task.shape} if task.shape else {}, folder)),
    ]
    start = time.perf_counter()
    answer = subprocess.run(theirs, check=True, capture_output=True, text=True).stdout
    other = time.perf_counter() - start
    arena, left_out = json.loads(answer.splitlines()[-1])
    size = sum(one["size"] for one in plan["arenas"])
    cells = (
        task.name,
        f"{size:,}",
        f"{plan['lower_bound']:,}",
        "yes" if plan["optimal"] else "no",
        str(len(plan["unplanned"])),
        f"{arena:,} ({left_out})",
        f"{verified / other:.1f}",
        f"{plain / other:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def for_onnxsim(path: Path, bound: Mapping[str, tuple[int, ...]], folder: Path) -> Path:
    """Return a file of the model, its inputs `bound`, in which constants are initializers: those of floats without their elements."""
    model, proto = load(path), onnx.load(path)
    bind(model, {}, bound)
    shapes, constants = resolve(model), Constants(model)
    made = {value.name: value for node in model.graph for value in node.outputs if value in constants}
    kept = [node for node in proto.graph.node if not set(filter(None, node.output)) <= made.keys()]
    read = {name for node in kept for name in node.input} & made.keys()
    fixed = [stripped(made[name], shapes, constants) for name in sorted(read)]
    weights = {tensor.name for tensor in (*proto.graph.initializer, *fixed)}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    for value in inputs:
        for dim, size in zip(value.type.tensor_type.shape.dim, bound.get(value.name, ()), strict=False):
            dim.dim_value = size
    for field, values in (("node", kept), ("input", inputs)):
        proto.graph.ClearField(field)
        getattr(proto.graph, field).extend(values)
    proto.graph.initializer.extend(fixed)
    proto.ir_version = max(4, proto.ir_version)
    onnx.save(proto, folder / "constants.onnx")
    return folder / "constants.onnx"


def stripped(value: ir.Value, shapes: Shapes, constants: Constants) -> onnx.TensorProto:
    """Return the constant `value`, without its elements where they are no whole numbers, which may be a shape."""
    dtype = shapes.dtype(value)
    assert dtype is not None
    if dtype == ir.DataType.INT64:
        return onnx.numpy_helper.from_array(constants.array(value), value.name)
    return onnx.TensorProto(name=value.name, dims=shapes.sizes(value), data_type=dtype.value)


def seconds(arguments: list[str]) -> float:
    """Return how long a command takes. Raises CalledProcessError where it fails."""
    start = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
