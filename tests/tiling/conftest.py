"""Models of one product, and the ways to tile and judge them that the tests of tiling share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.exact_products import exact_session
from onnxtile.model.known import declared
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.model.topology import all_nodes
from onnxtile.model.validity import check_proto, skeleton
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.runtime import Array
from onnxtile.tiling.limits import Limits, TilingPolicy
from onnxtile.tiling.result import TiledNode, TileResult
from onnxtile.tiling.site_check import TileVerdict, check_tiles
from onnxtile.tiling.tile import tile
from onnxtile.tiling.write import most_nodes
from tests import build

NAMES = ("a", "b", "c")
TILES = {"MatMul", "MatMulInteger", "MatMulNBits", "Gemm"}
CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger"}


@dataclass(frozen=True)
class Case:
    """One Gemm or MatMul: sizes, attributes, which operands are constant (by letter), element type, opset."""

    m: int = 3
    k: int = 5
    n: int = 4
    op: str = "Gemm"
    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0
    beta: float = 1.0
    bias: tuple[int, ...] | None = None
    constants: str = ""
    dtype: Any = np.float32
    opset: int = 17
    seed: int = 0
    name: str = "fc"

    def arrays(self) -> list[Array]:
        """Return the operands."""
        random = np.random.default_rng(self.seed)
        shapes: list[tuple[int, ...]] = [
            (self.k, self.m) if self.trans_a else (self.m, self.k),
            (self.n, self.k) if self.trans_b else (self.k, self.n),
        ]
        if self.bias is not None:
            shapes.append(self.bias)
        if np.issubdtype(self.dtype, np.integer):
            return [random.integers(0, 100, shape).astype(self.dtype) for shape in shapes]
        return [random.standard_normal(shape).astype(self.dtype) for shape in shapes]

    def expected(self) -> Array:
        """Return the result in float64, or exactly for integers."""
        wide = self.dtype if np.issubdtype(self.dtype, np.integer) else np.float64
        a, b, *c = (x.astype(wide) for x in self.arrays())
        result: Array = (a.T if self.trans_a else a) @ (b.T if self.trans_b else b)
        if self.op == "MatMul":
            return result
        scaled = np.asarray(wide(np.float32(self.alpha)) * result)
        return scaled + wide(np.float32(self.beta)) * c[0] if c else scaled

    def feeds(self) -> dict[str, Array]:
        """Return the operands that are inputs of the model."""
        return {name: x for name, x in zip(NAMES, self.arrays(), strict=False) if name not in self.constants}

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        arrays = dict(zip(NAMES, self.arrays(), strict=False))
        attributes: dict[str, Any] = {}
        if self.op == "Gemm":
            attributes = {
                "alpha": self.alpha,
                "beta": self.beta,
                "transA": int(self.trans_a),
                "transB": int(self.trans_b),
            }
        node = helper.make_node(self.op, list(arrays), ["y"], name=self.name, **attributes)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        return build.model(
            [node],
            {n: (element, x.shape) for n, x in arrays.items() if n not in self.constants},
            {"y": (element, [self.m, self.n])},
            {n: x for n, x in arrays.items() if n in self.constants},
            opset=self.opset,
            ir_version=8,
        )


@dataclass(frozen=True)
class Tiled:
    """A tiled model with what tiling it returned."""

    model: ir.Model
    result: TileResult
    limits: Limits
    constants: Constants = field(repr=False)

    @property
    def nodes(self) -> list[ir.Node]:
        """All nodes, in order."""
        return list(self.model.graph)

    def count(self, op: str) -> int:
        """Return how many nodes of type `op` there are."""
        return sum(node.op_type == op for node in self.nodes)

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Run the tiled model."""
        return exact_session(to_bytes(self.model), self.model).run(feeds)

    def verdicts(self, runs: int = 1) -> tuple[TileVerdict, ...]:
        """Run each tiled node and its original."""
        opset = self.model.graph.opset_imports[""]
        return check_tiles(self.result.tiled, self.constants, opset, runs=runs)

    def require_sound(self) -> None:
        """Assert what holds for every tiled model: valid, no product above the limits by shapes inferred anew, no idle nodes."""
        proto = skeleton(self.model)
        check_proto(proto)
        sizes = sizes_by_onnx(proto)
        shapes: Shapes | None = None  # of the package, where onnx does not know one
        marked = [node for node in all_nodes(self.model) if keys.TILE in node.metadata_props]
        assert sum(node.op_type in TILES | CONVOLUTIONS for node in marked) == self.result.matmuls
        for node in marked:
            if node.op_type in TILES:
                values = [value for value in node.inputs[:2] if value is not None]
                dims = [sizes.get(value.name) or declared(value).dims for value in values]
                if not all(isinstance(size, int) for one in dims for size in one or ()):
                    shapes = shapes or resolve(self.model)
                    dims = [shapes.dims(value) or declared(value).dims for value in values]
                require_within(node, self.limits, dims)
            assert not (node.op_type == "Split" and len(node.outputs) == 1), node
            assert not (node.op_type in {"Sum", "Concat"} and len(node.inputs) == 1), node
        names = [v.name for n in self.model.graph.all_nodes() for v in n.outputs] + [*self.model.graph.initializers]
        assert len(names) == len(set(names))


def sizes_by_onnx(proto: onnx.ModelProto) -> dict[str | None, tuple[int | str | None, ...]]:
    """Return the dimensions of the values of the main graph of `proto`, whose own declarations are forgotten."""
    del proto.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    found: dict[str | None, tuple[int | str | None, ...]] = {one.name: tuple(one.dims) for one in graph.initializer}
    for one in (*graph.input, *graph.value_info, *graph.output):
        tensor = one.type.tensor_type
        if tensor.HasField("shape"):
            dims = ((dim.dim_value if dim.HasField("dim_value") else dim.dim_param) for dim in tensor.shape.dim)
            found[one.name] = tuple(dims)
    return found


def require_within(node: ir.Node, limits: Limits, dims: Sequence[tuple[int | str | None, ...] | None]) -> None:
    a, b = dims
    if node.op_type == "MatMulNBits":
        b = node.attributes["K"].as_int(), node.attributes["N"].as_int()
    # Inside a function nothing is known of its inputs; what a bound holds for was cut there, and is.
    m, k = (None, None) if a is None else (a[-2] if len(a) > 1 else 1, a[-1])
    n = None if b is None else b[-1] if len(b) > 1 else 1
    for size, bound in ((m, limits.m), (k, limits.k), (n, limits.n)):
        assert bound is None or (isinstance(size, int) and size <= bound), node


class Bench:
    """What the tests do with a model."""

    def case(self, **fields: Any) -> Case:
        """Return a case."""
        return Case(**fields)

    @staticmethod
    def tile(source: onnx.ModelProto | ir.Model, limits: Limits, options: TilingPolicy | None = None) -> Tiled:
        """Tile a copy of `source` and assert that the outcome is sound."""
        model = load(source)
        constants = Constants(model)
        tiled = Tiled(model, tile(model, limits, resolve(model), constants, options), limits, constants)
        tiled.require_sound()
        return tiled

    @staticmethod
    def most_nodes(site: TiledNode) -> int:
        """Return how many nodes were announced for a site, at most."""
        return most_nodes(site.contraction, site.grid, site.accumulate)

    @classmethod
    def judge(cls, case: Case, limits: Limits, options: TilingPolicy | None = None) -> Tiled:
        """Tile the model of `case`; assert that it computes the product."""
        tiled = cls.tile(case.model(), limits, options)
        got = tiled.run(case.feeds())["y"]
        expected = case.expected()
        assert got.dtype == case.dtype and got.shape == expected.shape
        if np.issubdtype(case.dtype, np.integer):
            np.testing.assert_array_equal(got, expected)
        else:
            # An error grows with the partial sums, which K, alpha and the bias make large, not with what is left of them.
            scale = abs(case.alpha) * np.sqrt(case.k) + abs(case.beta) + np.abs(expected).max()
            np.testing.assert_allclose(got, expected, rtol=0, atol=8 * float(np.finfo(case.dtype).eps) * scale)
        return tiled


@pytest.fixture(scope="session")
def bench() -> Bench:
    """Return the bench."""
    return Bench()
