"""A decoder whose cache grows, run from what is published alone: the JSON or the compiled header, and the block of constants.

A small interpreter: each tensor is an array with the published offset, shape and strides in one block of memory; onnxruntime runs
each node.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onnxtile
from tests import build

DECODER = """
<ir_version: 10, opset_import: ["" : 21]>
decoder (float[batch, 1, 32] x, float[batch, 2, past, 16] past_k, float[batch, 2, past, 16] past_v)
  => (float[batch, 1, 64] y, float[batch, 2, total, 16] present_k, float[batch, 2, total, 16] present_v) {
  kf = MatMul(x, wk)
  vf = MatMul(x, wv)
  qf = MatMul(x, wq)
  k4 = Reshape(kf, heads)
  k = Transpose <perm = [0, 2, 1, 3]> (k4)
  v4 = Reshape(vf, heads)
  v = Transpose <perm = [0, 2, 1, 3]> (v4)
  present_k = Concat <axis = 2> (past_k, k)
  present_v = Concat <axis = 2> (past_v, v)
  k5 = Unsqueeze(present_k, two)
  v5 = Unsqueeze(present_v, two)
  q5 = Reshape(qf, groups)
  kt = Transpose <perm = [0, 1, 2, 4, 3]> (k5)
  scores = MatMul(q5, kt)
  w = Softmax(scores)
  o = MatMul(w, v5)
  o3 = Reshape(o, flat)
  y = Relu(o3)
}
"""
SPREAD = {"past_k", "past_v", "present_k", "present_v", "k5", "v5"}
Sizes = Mapping[str, int]
Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The offset of a tensor, its shape, and its strides, all in bytes or elements of its axes."""
TYPES = {"FLOAT": np.float32, "INT64": np.int64}


def decoder(path: Path) -> Path:
    model, draws = onnx.parser.parse_model(DECODER), np.random.default_rng(0)
    weights = {"wk": (32, 32), "wv": (32, 32), "wq": (32, 64)}
    held = {name: draws.normal(0, 0.2, shape).astype(np.float32) for name, shape in weights.items()}
    held |= {"heads": np.array([0, 1, 2, 16]), "two": np.array([2]), "flat": np.array([0, 1, 64])}
    held |= {"groups": np.array([0, 2, 2, 1, 16])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in held.items())
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module", params=[{"batch": 2, "past": (0, 63)}, {"batch": (1, 2), "past": (1, 15)}], ids=str)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    model = decoder(folder / "net.onnx")
    planned = onnxtile.plan(model, dims=request.param, state="found", runs=2)
    for ending in ("json", "h", "bin"):
        planned.write(folder / f"net.{ending}")
    return folder


def value(text: str, sizes: Sizes) -> int:
    return int(eval(text, {"__builtins__": {}, "max": max, "min": min}, dict(sizes)))


def place_in_json(row: Mapping[str, Any], sizes: Sizes) -> Place:
    """Return where `row` of the JSON lies at `sizes`."""
    shape = tuple(value(size, sizes) for size in row["shape_formula"])
    if "strides" in row:
        return row["offset"], shape, tuple(value(stride, sizes) for stride in row["strides_formula"])
    item = np.dtype(TYPES[row["dtype"]]).itemsize
    return row["offset"], shape, tuple(item * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


class Interpreter:
    """Runs the nodes of the plan in `folder`; `place` says where a tensor lies at sizes of the dimensions."""

    def __init__(self, folder: Path, place: Callable[[Mapping[str, Any], Sizes], Place]) -> None:
        self.plan = json.loads((folder / "net.json").read_text())
        self.rows = {row["name"]: row for row in self.plan["buffers"]}
        self.arena = np.zeros(self.plan["arenas"][0]["size"], np.uint8)
        block = (folder / "net.bin").read_bytes()
        self.constants = {
            one["name"]: np.frombuffer(block, TYPES[one["dtype"]], int(np.prod(one["shape"])), one["offset"]).reshape(
                one["shape"]
            )
            for one in self.plan["constants"]
        }
        self.place = place

    def view(self, name: str, sizes: Sizes) -> Any:
        offset, shape, strides = self.place(self.rows[name], sizes)
        dtype = TYPES[self.rows[name]["dtype"]]
        return np.ndarray(shape, dtype, self.arena.data, offset, strides)

    def run(self, given: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
        held = {**self.constants, **given}
        plan = self.plan
        lists = (plan[key] for key in ("operators", "operands", "results", "attributes"))
        for operator, operands, results, attributes in zip(*lists, strict=True):
            read = [held[one] if one in held else self.view(one, sizes).copy() for one in operands]
            types = tuple((onnx.helper.np_dtype_to_tensor_dtype(one.dtype), one.ndim) for one in read)
            made = session(operator, json.dumps(attributes), types)
            arrays = made.run(None, {f"i{number}": one for number, one in enumerate(read)})
            for result, array in zip(results, arrays, strict=True):
                self.view(result, sizes)[...] = array
        return {row["name"]: self.view(row["name"], sizes).copy() for row in plan["outputs"]}

    def scribble(self) -> None:
        """Overwrite all bytes but those of states."""
        kept = np.zeros(len(self.arena), bool)
        for state in self.plan["states"]:
            assert state["copied"] == 0
            kept[state["offset"] : state["offset"] + state["size"]] = True
        self.arena[~kept] = 0xA5


@cache
def session(operator: str, attributes: str, operands: tuple[tuple[int, int], ...]) -> onnxruntime.InferenceSession:
    """Return the session of one node for operands of any size: of each its type and its rank are given."""
    names = [f"i{number}" for number in range(len(operands))]
    node = onnx.helper.make_node(operator, names, ["o"], **json.loads(attributes))
    ends = {name: (kind, [None] * rank) for name, (kind, rank) in zip(names, operands, strict=True)}
    model = build.model([node], ends, {"o": None}, opset=21, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def require_same_runs(folder: Path, place: Callable[[Mapping[str, Any], Sizes], Place]) -> None:
    """Run the decoder at each batch from the least length of its cache to the largest, beside onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    whole = onnxruntime.InferenceSession(str(folder / "net.onnx"), options, providers=["CPUExecutionProvider"])
    ranges = json.loads((folder / "net.json").read_text())["ranges"]
    low, high = ranges["past"]
    for batch in range(ranges.get("batch", [2, 2])[0], 3):
        draws = np.random.default_rng(batch)
        ran = Interpreter(folder, place)
        caches = {name: draws.normal(size=(batch, 2, low, 16)).astype(np.float32) for name in ("past_k", "past_v")}
        for past in range(low, high + 1):
            sizes = {"past": past} | ({"batch": batch} if "batch" in ranges else {})
            if past == low:
                for name, cache in caches.items():
                    ran.view(name, sizes)[...] = cache
            x = draws.normal(size=(batch, 1, 32)).astype(np.float32)
            wanted = dict(zip(["y", "present_k", "present_v"], whole.run(None, {"x": x, **caches}), strict=True))
            found = ran.run({"x": x}, sizes)
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=f"{name} at {sizes}")
            caches = {"past_k": wanted["present_k"], "past_v": wanted["present_v"]}
            ran.scribble()


def test_a_decoder_runs_from_the_json_alone(files: Path) -> None:
    assert onnxtile.check_plan(files / "net.onnx", files / "net.json").failures == ()
    plan = json.loads((files / "net.json").read_text())
    assert {row["name"] for row in plan["buffers"] if "strides" in row} == SPREAD
    require_same_runs(files, place_in_json)


def test_a_view_read_as_contiguous_would_be_wrong(files: Path) -> None:
    """The strides are needed: without them, the runs differ."""

    def plain(row: Mapping[str, Any], sizes: Sizes) -> Place:
        return place_in_json({k: v for k, v in row.items() if k != "strides" or row["name"] != "k5"}, sizes)

    with pytest.raises(AssertionError):
        require_same_runs(files, plain)


PROBE = """
#include "net.h"
int probe(uint32_t index, size_t batch, size_t past, uint64_t *out) {
    int axis;
    struct net_tensor found = net_tensor_at(index, PARAMETERS);
    (void)batch;
    out[0] = found.offset;
    out[1] = found.size;
    for (axis = 0; axis < found.rank; ++axis) {
        out[2 + axis] = found.shape[axis];
        out[2 + found.rank + axis] = found.strides[axis];
    }
    return found.rank;
}
uint32_t find(const char *name) {
    uint32_t index = 0;
    const char *a, *b;
    for (; index < NET_VALUE_COUNT; ++index) {
        for (a = name, b = net_tensors[index].name; *a && *a == *b; ++a, ++b) {}
        if (*a == *b) break;
    }
    return index;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_decoder_runs_from_the_compiled_header(files: Path) -> None:
    ranges = json.loads((files / "net.json").read_text())["ranges"]
    (files / "probe.c").write_text(PROBE.replace("PARAMETERS", ", ".join(ranges)))
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "probe.c", "-o", "probe.so"], cwd=files, check=True)
    library = ctypes.CDLL(str(files / "probe.so"))
    library.find.restype = ctypes.c_uint32
    out = (ctypes.c_uint64 * 32)()

    def place(row: Mapping[str, Any], sizes: Sizes) -> Place:
        index = library.find(row["name"].encode())
        batch, past = ctypes.c_size_t(sizes.get("batch", 2)), ctypes.c_size_t(sizes["past"])
        rank = library.probe(index, batch, past, out)
        found, item = list(out), np.dtype(TYPES[row["dtype"]]).itemsize
        assert found[1] == np.prod(found[2 : 2 + rank]) * item
        return found[0], tuple(found[2 : 2 + rank]), tuple(item * one for one in found[2 + rank : 2 + 2 * rank])

    require_same_runs(files, place)
