"""How the time to find the five queries of `patterns/aidge`, and to fuse with the whole library, grows with the graph.

    python -m tests.bench.growth [--zoo FOLDER] [--sizes 10000,30000,100000] [--repeats N]

The graphs are transformers of repeated blocks: attention, two layer norms, a GELU, all spelled out. Times are processor time, the least of
the repeats: `constants` is what telling constants apart takes, `first` a search by a new Matcher, `again` the next one, `fuse` matching
and rewriting with every pattern of the library, without verification. Growth is the
time for a node at the largest size against that at the smallest; 1 is linear.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import Pattern, pattern_set
from onnxtile.model.constants import Constants
from onnxtile.query.match import Matcher, compiled
from onnxtile.query.program import Program

ROOT = Path(__file__).parent.parent.parent


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--zoo", default=str(ROOT.parent / "shared" / "zoo"))
    parser.add_argument("--sizes", default="10000,30000,100000")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    programs = dict(_programs())
    for line in _zoo_table(Path(options.zoo), programs, options.repeats):
        sys.stdout.write(line + "\n")
    for line in _growth_table([int(size) for size in options.sizes.split(",")], programs, options.repeats):
        sys.stdout.write(line + "\n")


def _programs() -> Iterator[tuple[str, Program]]:
    for path in sorted((ROOT / "patterns" / "aidge").glob("*.toml")):
        file = tomllib.loads(path.read_text("utf-8"))
        yield file["name"], compiled(file["variants"][0]["query"], {"Linear", "ScaledDotProductAttention"})


def _least(repeats: int, action: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        action()
        return time.process_time() - start

    return min(once() for _ in range(repeats))


def _zoo_table(folder: Path, programs: dict[str, Program], repeats: int) -> Iterator[str]:
    times, largest = [], (0.0, "")
    for path in sorted(folder.glob("*.onnx")):
        model = ir.load(path)
        constants = Constants(model)
        times.append(_least(repeats, partial(_find_all, model, constants, programs)))
        largest = max(largest, (times[-1], f"{path.stem}, {model.graph.num_nodes():,} nodes"))
    if times:
        yield f"The five queries on {len(times)} models: {sum(times):.3f} s in all, at most {largest[0]:.3f} s ({largest[1]})"
        yield ""


def _find_all(model: ir.Model, constants: Constants, programs: dict[str, Program]) -> None:
    matcher = Matcher(model, constants)
    for program in programs.values():
        matcher.find(program)


def _growth_table(sizes: list[int], programs: dict[str, Program], repeats: int) -> Iterator[str]:
    models = [transformer(size) for size in sizes]
    yield f"| ms | {' | '.join(f'{model.graph.num_nodes():,} nodes' for model in models)} | matches | growth |"
    yield f"|---|{'---:|' * (len(sizes) + 2)}"
    constants = [Constants(model) for model in models]
    yield _row("constants", [_least(repeats, partial(Constants, model)) for model in models], sizes, "")
    matchers = [Matcher(model, known) for model, known in zip(models, constants, strict=True)]
    for name, program in programs.items():
        pairs = list(zip(models, constants, strict=True))
        first = [_least(repeats, partial(_find_first, model, known, program)) for model, known in pairs]
        again = [_least(repeats, partial(matcher.find, program)) for matcher in matchers]
        count = f"{len(matchers[-1].find(program)):,}"
        yield _row(f"{name}, first", first, sizes, count)
        yield _row(f"{name}, again", again, sizes, count)
    patterns = pattern_set()
    fused = [min(_fuse_time(size, patterns) for _ in range(repeats)) for size in sizes]
    yield _row("fuse, the whole library", fused, sizes, "")


def _fuse_time(size: int, patterns: list[Pattern]) -> float:
    model = transformer(size)
    return _least(1, lambda: fuse(model, patterns))


def _find_first(model: ir.Model, constants: Constants, program: Program) -> None:
    Matcher(model, constants).find(program)


def _row(name: str, seconds: list[float], sizes: list[int], count: str) -> str:
    growth = (seconds[-1] / sizes[-1]) / (seconds[0] / sizes[0])
    return f"| {name} | {' | '.join(f'{1e3 * s:.1f}' for s in seconds)} | {count} | {growth:.2f} |"


def transformer(size: int) -> ir.Model:
    """Return a model of about `size` nodes: blocks of attention and two layers, normalised, with constants shared by all blocks."""
    shared = {
        name: _initializer(name, value)
        for name, value in (("two", 2.0), ("eps", 1e-5), ("root", 1.41421356), ("half", 0.5))
    }
    shared["one"], shared["scale"] = _initializer("one", 1.0), _initializer("scale", 8.0)
    start = ir.Value(name="x", shape=ir.Shape([1, 4, 8]), type=ir.TensorType(ir.DataType.FLOAT))
    builder = _Builder(shared)
    value = start
    while len(builder.nodes) < size:
        value = builder.block(value)
    own = [*shared.values(), *builder.weights]
    graph = ir.Graph([start], [value], nodes=builder.nodes, initializers=own, opset_imports={"": 17}, name="blocks")
    return ir.Model(graph, ir_version=8)


def _initializer(name: str, number: float) -> ir.Value:
    tensor = ir.tensor(np.full(1, number, np.float32), name=name)
    return ir.Value(name=name, const_value=tensor, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))


class _Builder:
    def __init__(self, shared: dict[str, ir.Value]) -> None:
        self.nodes: list[ir.Node] = []
        self.weights: list[ir.Value] = []
        self._shared = shared

    def block(self, x: ir.Value) -> ir.Value:
        """Return what a transformer block makes of `x`."""
        h = self._norm(x)
        q, k, v = (self._node("Transpose", self._node("Reshape", self._linear(h))) for _ in "qkv")
        scores = self._node("Div", self._node("MatMul", q, self._node("Transpose", k)), self._shared["scale"])
        mixed = self._node("MatMul", self._node("Softmax", scores), v)
        x = self._node("Add", x, self._linear(self._node("Reshape", self._node("Transpose", mixed))))
        h = self._linear(self._norm(x))
        erf = self._node("Erf", self._node("Div", h, self._shared["root"]))
        gate = self._node("Mul", h, self._node("Add", erf, self._shared["one"]))
        return self._node("Add", x, self._linear(self._node("Mul", gate, self._shared["half"])))

    def _norm(self, x: ir.Value) -> ir.Value:
        centred = self._node("Sub", x, self._mean(x))
        variance = self._mean(self._node("Pow", centred, self._shared["two"]))
        normed = self._node("Div", centred, self._node("Sqrt", self._node("Add", variance, self._shared["eps"])))
        return self._node("Add", self._node("Mul", normed, self._weight()), self._weight())

    def _mean(self, x: ir.Value) -> ir.Value:
        return self._node("ReduceMean", x, axes=[-1])

    def _linear(self, x: ir.Value) -> ir.Value:
        return self._node("Add", self._weight(), self._node("MatMul", x, self._weight()))

    def _weight(self) -> ir.Value:
        self.weights.append(_initializer(f"w{len(self.weights)}", 1.0))
        return self.weights[-1]

    def _node(self, op_type: str, *inputs: ir.Value, **attributes: list[int]) -> ir.Value:
        given = [ir.AttrInt64s(name, value) for name, value in attributes.items()]
        node = ir.Node("", op_type, inputs, given, name=f"n{len(self.nodes)}")
        node.outputs[0].name = f"v{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]


if __name__ == "__main__":
    main()
