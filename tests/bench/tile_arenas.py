"""Plans models before and after `tile`: a table in Markdown.

    python -m tests.bench.tile_arenas [--limits "--max 64"] ... [MODEL.onnx ...]

Without models: the demo's transformer, a Gemm of 64 x 4096 x 512, MobileNetV2 as models/make_mobilenet_v2.py makes it, five of onnx's light
models, rapidocr's classifier and recogniser, and magika. Convolutions are tiled as well. "one tile" is the most that a tile of the model
takes of the arena: the blocks of operands that are no constants, its product, and the partial sum that it is added to. "grown" is the arena
after minus the arena before. Arenas are those of `onnxtile plan --no-verify`; the plans are proved in tests/planning.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.bench.tables import ROOT, head, line, show

LIMITS = ("--max 64", "--memory 256KiB")
LIGHT = ("resnet50", "squeezenet", "densenet121", "shufflenet", "inception_v1")
OCR = {"ch_ppocr_mobile_v2.0_cls_infer": "x=1x3x48x192", "ch_PP-OCRv4_rec_infer": "x=1x3x48x320"}


@dataclass(frozen=True)
class Task:
    """A model, and the options that bind its sizes."""

    name: str
    path: Path
    options: tuple[str, ...] = ()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--limits", action="append")
    given = parser.parse_args(arguments)
    columns = ("model", "limits", "nodes", "nodes after", "arena", "arena after", "grown", "one tile", "within")
    with tempfile.TemporaryDirectory() as folder:
        tasks = [Task(path.stem, path) for path in given.models] or known(Path(folder))
        show(head(columns, 2), (row(task, one, Path(folder)) for task in tasks for one in given.limits or LIMITS))


def known(folder: Path) -> Iterator[Task]:
    """Yield the models of the table."""
    yield Task("demo", ROOT / "models" / "transformer.onnx")
    yield Task("Gemm 64×4096×512", gemm(folder / "gemm.onnx"))
    mobilenet = folder / "mobilenet_v2.onnx"
    make = [sys.executable, str(ROOT / "models" / "make_mobilenet_v2.py"), str(mobilenet), "--seed", "0"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    yield Task("MobileNetV2", mobilenet, ("--dim", "batch=1"))
    for name in LIGHT:
        yield Task(name, package("onnx") / f"backend/test/data/light/light_{name}.onnx")
    for name, shape in OCR.items():
        yield Task(name, package("rapidocr_onnxruntime") / "models" / f"{name}.onnx", ("--shape", shape))
    yield Task("magika", next((package("magika") / "models").glob("*/model.onnx")), ("--shape", "bytes=1x2048"))


def gemm(path: Path) -> Path:
    """Write a Gemm whose two factors are inputs."""
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node("Gemm", ["a", "b"], ["y"], "gemm")
    inputs = [value("a", onnx.TensorProto.FLOAT, (64, 4096)), value("b", onnx.TensorProto.FLOAT, (4096, 512))]
    graph = onnx.helper.make_graph([node], "gemm", inputs, [value("y", onnx.TensorProto.FLOAT, (64, 512))])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def package(name: str) -> Path:
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def row(task: Task, limits: str, folder: Path) -> str:
    """Return the row of `task` within `limits`."""
    tiled, document = folder / "tiled.onnx", folder / "tiled.json"
    onnxtile(
        "tile", task.path, *limits.split(), "--conv", *task.options, "--no-verify", "-o", tiled, "--json", document
    )
    report = json.loads(document.read_text())
    before, after, held = arena(task.path, task.options), arena(tiled, ()), largest_tile(onnx.load(tiled))
    grown = after - before
    cells = (
        task.name,
        limits,
        f"{report['nodes_before']:,}",
        f"{report['nodes_after']:,}",
        f"{before:,}",
        f"{after:,}",
        f"{grown:,}",
        f"{held:,}",
        "yes" if grown <= held else "no",
    )
    return line(cells)


def arena(path: Path, options: Sequence[str]) -> int:
    """Return the bytes of the arena of the model at `path`."""
    answer = onnxtile("plan", path, *options, "--dry-run", "--no-verify", "--json", "-")
    planned = json.loads(answer)
    if planned["unplanned"]:
        raise SystemExit(f"{path}: {planned['unplanned'][0]}")
    return sum(int(one["size"]) for one in planned["arenas"])


def onnxtile(*arguments: object) -> str:
    """Return the output of a command. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "onnxtile", *map(str, arguments), "-q"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def largest_tile(model: onnx.ModelProto) -> int:
    """Return the bytes of the arena that the largest tile of a model takes, itself and the partial sum beside it."""
    known = sizes(model)
    return max((taken(node, known) for node in model.graph.node if mark(node).get("part") == "tile"), default=0)


def taken(node: onnx.NodeProto, known: Mapping[str, int]) -> int:
    """Return the bytes of what a tile reads and makes; of its product twice where it is one of several partial sums."""
    product = known[node.output[0]]
    return sum(known.get(name, 0) for name in node.input) + product * (2 if mark(node)["grid"][1] > 1 else 1)


def mark(node: onnx.NodeProto) -> dict[str, Any]:
    """Return what `tile` says of a node."""
    return next((json.loads(one.value) for one in node.metadata_props if one.key == "pkg.onnxtile.tile"), {})


def sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the bytes of each value with a declared shape that is no initializer."""
    values = (*model.graph.value_info, *model.graph.output, *model.graph.input)
    constants = {one.name for one in model.graph.initializer}
    return {one.name: size(one.type.tensor_type) for one in values if one.name not in constants}


def size(tensor: onnx.TypeProto.Tensor) -> int:
    """Return the bytes of a tensor of a declared shape."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return prod(dim.dim_value for dim in tensor.shape.dim) * np.dtype(dtype).itemsize


if __name__ == "__main__":
    main()
