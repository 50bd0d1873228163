"""Latency in onnxruntime of lowered models beside those of onnxruntime.transformers.optimizer.

Three models of the shapes of BERT-base, GPT-2-small and DINOv2-small, decomposed as exporters do and with random weights, or the files
given (exports of real ones, of which the optimizer fuses more). Runs are interleaved, medians of ratios compared. With one thread the
time is that of the processor, which other work on the machine does not lengthen; with more it is that of the clock.

Usage: python -m tests.bench.lowering_speed [--runs 30] [--layers 12] [--threads 1] [MODEL:TYPE:HEADS:HIDDEN ...]
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.verification.trials import run_original


@dataclass(frozen=True)
class Shape:
    """A transformer: its width, heads, tokens, and what makes it the kind it is."""

    name: str
    kind: str
    hidden: int
    heads: int
    tokens: int
    causal: bool = False
    tanh: bool = False
    before: bool = True


SHAPES = (
    Shape("BERT-base", "bert", 768, 12, 128, before=False),
    Shape("GPT-2-small", "gpt2", 768, 12, 128, causal=True, tanh=True),
    Shape("DINOv2-small", "vit", 384, 6, 257),
)


class Builder:
    """Writes a transformer node by node."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, onnx.TensorProto] = {}
        self.random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return its output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def number(self, value: Any, dtype: Any = np.float32) -> str:
        """Return a constant, shared by all who need it."""
        array = np.asarray(value, dtype)
        name = f"c{array.dtype}{array.shape}{hash(array.tobytes())}"
        self.held.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, scale: float = 0.02) -> str:
        """Return a weight of its own."""
        name = f"w{len(self.held)}"
        self.held[name] = numpy_helper.from_array(self.random.normal(0, scale, shape).astype(np.float32), name)
        return name

    def linear(self, x: str, columns: int, rows: int) -> str:
        """Add a matrix product and a bias."""
        return self.add("Add", self.weight(columns), self.add("MatMul", x, self.weight(rows, columns)))

    def norm(self, x: str) -> str:
        """Add a layer norm."""
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", centred, self.number(2.0)), axes=[-1])
        root = self.add("Sqrt", self.add("Add", variance, self.number(1e-5)))
        width = self.shape.hidden
        scaled = self.add("Mul", self.add("Div", centred, root), self.weight(width, scale=1.0))
        return self.add("Add", scaled, self.weight(width))

    def gelu(self, x: str) -> str:
        """Add a GELU."""
        if not self.shape.tanh:
            erf = self.add("Erf", self.add("Div", x, self.number(math.sqrt(2.0))))
            return self.add("Mul", self.add("Mul", x, self.add("Add", erf, self.number(1.0))), self.number(0.5))
        half = self.add("Mul", x, self.number(0.5))
        cube = self.add("Mul", self.add("Pow", x, self.number(3.0)), self.number(0.044715))
        inner = self.add("Mul", self.add("Add", x, cube), self.number(math.sqrt(2.0 / math.pi)))
        return self.add("Mul", half, self.add("Add", self.add("Tanh", inner), self.number(1.0)))

    def attention(self, x: str, mask: str | None) -> str:
        """Add multi-head attention."""
        shape = self.shape
        size = shape.hidden // shape.heads
        split = self.number([1, shape.tokens, shape.heads, size], np.int64)
        q, k, v = (self.linear(x, shape.hidden, shape.hidden) for _ in range(3))
        q, v = (self.add("Transpose", self.add("Reshape", y, split), perm=[0, 2, 1, 3]) for y in (q, v))
        k = self.add("Transpose", self.add("Reshape", k, split), perm=[0, 2, 3, 1])
        scores = self.add("Div", self.add("MatMul", q, k), self.number(math.sqrt(size)))
        if mask is not None:
            scores = self.add("Add", scores, mask)
        context = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        merged = self.add("Transpose", context, perm=[0, 2, 1, 3])
        merged = self.add("Reshape", merged, self.number([1, shape.tokens, shape.hidden], np.int64))
        return self.linear(merged, shape.hidden, shape.hidden)

    def block(self, x: str, mask: str | None) -> str:
        """Add a block, normalised before or after its parts."""
        width = self.shape.hidden

        def mlp(y: str) -> str:
            return self.linear(self.gelu(self.linear(y, 4 * width, width)), width, 4 * width)

        if self.shape.before:
            x = self.add("Add", x, self.attention(self.norm(x), mask))
            return self.add("Add", x, mlp(self.norm(x)))
        x = self.norm(self.add("Add", self.attention(x, mask), x))
        return self.norm(self.add("Add", mlp(x), x))

    def model(self, layers: int) -> onnx.ModelProto:
        """Return the model."""
        shape = self.shape
        dims = [1, shape.tokens, shape.hidden]
        mask = None
        if shape.causal:
            mask = self.number(np.where(np.tri(shape.tokens) > 0, 0.0, -1e4)[None, None])
        elif shape.kind == "bert":
            mask = self.number(np.zeros((1, 1, 1, shape.tokens)))
        x = "x" if shape.before else self.norm("x")
        for _ in range(layers):
            x = self.block(x, mask)
        if shape.before:
            x = self.norm(x)
        graph = helper.make_graph(
            self.nodes,
            shape.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
            list(self.held.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def optimised(path: Path, kind: str, heads: int, hidden: int) -> bytes:
    """Return what onnxruntime.transformers.optimizer makes of a model."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    logging.disable(logging.WARNING)
    options = FusionOptions(kind)
    model = optimizer.optimize_model(str(path), kind, heads, hidden, optimization_options=options, opt_level=0)
    print(f"  optimizer: { {k: v for k, v in model.get_fused_operator_statistics().items() if v} }")
    data: bytes = model.model.SerializeToString()
    return data


def runner(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Return a session with all optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compare(path: Path, kind: str, heads: int, hidden: int, runs: int, threads: int) -> dict[str, tuple[float, float]]:
    """Return for each way to optimise a model the median latency in milliseconds, and its median ratio to the optimizer's.

    A ratio is one of two runs of the same round, so that a load that comes and goes is in both.
    """
    models = {"original": path.read_bytes(), "optimizer": optimised(path, kind, heads, hidden)}
    for target in ("onnx", "ort"):
        result = api.fuse(path, lower=target, verify=False)
        models[f"lowered {target}"] = to_bytes(result.model)
    feeds = run_original(load(path), runs=1)[0][0].feeds
    sessions = {name: runner(model, threads) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    names = list(sessions)
    clock = time.thread_time if threads == 1 else time.perf_counter
    for run in range(runs + 3):
        for name in names[run % len(names) :] + names[: run % len(names)]:
            start = clock()
            sessions[name].run(None, feeds)
            if run >= 3:
                times[name].append((clock() - start) * 1e3)
    reference = times["optimizer"]
    return {
        name: (statistics.median(values), statistics.median(a / b for a, b in zip(values, reference, strict=True)))
        for name, values in times.items()
    }


def main() -> None:
    """Print medians and ratios for each model, and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="MODEL:TYPE:HEADS:HIDDEN, TYPE as the optimizer's --model_type")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {"lowered onnx": [], "lowered ort": []}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [tuple(model.split(":")) for model in options.models]
        for shape in SHAPES if not jobs else ():
            path = Path(folder) / f"{shape.name}.onnx"
            onnx.save(Builder(shape).model(options.layers), path)
            jobs.append((str(path), shape.kind, str(shape.heads), str(shape.hidden)))
        for path, kind, heads, hidden in jobs:
            print(Path(path).stem)
            medians = compare(Path(path), kind, int(heads), int(hidden), options.runs, options.threads)
            for name, (value, ratio) in medians.items():
                print(f"  {name:14} {value:9.2f} ms   {ratio:.3f} of the optimizer's")
            for name, values in ratios.items():
                values.append(medians[name][1])
            sys.stdout.flush()
    for name, values in ratios.items():
        print(f"{name}: geometric mean {statistics.geometric_mean(values):.3f} of the optimizer's time")


if __name__ == "__main__":
    main()
