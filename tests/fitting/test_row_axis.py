"""The axis that strips are cut along: a net gets the same arena at any rank, and whichever way its maps are turned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import onnxtile
from onnxtile.fitting.read_network import read_network
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests import build
from tests.draws import draws
from tests.fitting.networks import cut_into_strips, run

SIZES = {"length": (1, 3), "length of columns": (1, 4), "columns": (2, 4), "frames": (1, 5)}
"""By form of a net of one length: the place of this length among the axes of maps, and the rank of tensors."""


def over_length(form: str, length: int, steps: list[tuple[str, int]]) -> onnx.ModelProto:
    """Return a net along one `length`, of operators with their strides; all other axes of maps have the size 1."""
    place, rank = SIZES[form]

    def along(number: int, other: int = 1) -> list[int]:
        return [number if axis == place else other for axis in range(1, rank - 1)]

    random, nodes, constants, value, channels = np.random.default_rng(0), [], dict[str, Any](), "x", 1
    for number, (op, stride) in enumerate(steps):
        attributes: dict[str, Any] = {"kernel_shape": along(3), "strides": along(stride), "pads": along(1, 0) * 2}
        operands = [value]
        if op == "Conv":
            constants[f"w{number}"] = random.standard_normal((16, channels, *along(3))).astype(np.float32) / 4
            operands, channels = [value, f"w{number}"], 16
        value = f"t{number}" if number < len(steps) - 1 else "y"
        nodes.append(helper.make_node(op, operands, [value], name=f"n{number}", **attributes))
    dims = [1, 1, *along(length)]
    return build.model(nodes, {"x": dims}, {"y": [None] * rank}, constants)


CONVOLUTIONS = [("Conv", 1)] * 4 + [("MaxPool", 2)] * 3


@pytest.mark.parametrize("form", SIZES)
def test_a_net_of_one_length_gets_the_same_arena_at_any_rank(form: str) -> None:
    fitted = onnxtile.fit(over_length(form, 256, CONVOLUTIONS), capacity="smallest")
    assert fitted.before.arena == 2 * 16 * 256 * 4
    assert fitted.after.arena == 2 * 16 * 32 * 4, "the result, and its strips, which a copy joins"


@draws(20, 100)
@given(
    form=st.sampled_from(list(SIZES)),
    length=st.integers(24, 64),
    steps=st.lists(
        st.tuples(st.sampled_from(["Conv", "MaxPool", "AveragePool"]), st.integers(1, 2)), min_size=2, max_size=4
    ),
    step=st.integers(1, 12),
)
def test_strips_along_any_axis_give_the_same_results(
    form: str, length: int, steps: list[tuple[str, int]], step: int
) -> None:
    proto = over_length(form, length, [("Conv", 1), *steps])
    cut, _ = cut_into_strips(proto, step, exact=True)
    assert len(cut.graph.node) > len(proto.graph.node), "nothing was cut"
    x = np.random.default_rng(1).standard_normal([dim.dim_value for dim in _dims(proto)]).astype(np.float32)
    np.testing.assert_allclose(run(proto, x), run(cut, x), rtol=1e-4, atol=1e-5)


def _dims(proto: onnx.ModelProto) -> Any:
    return proto.graph.input[0].type.tensor_type.shape.dim


def _axes(proto: onnx.ModelProto) -> list[int | None]:
    made = load(proto)
    network = read_network(made, resolve(made, run=True), Constants(made))
    return [about.axis for about in network.tensors]


@pytest.mark.parametrize(("rows", "columns", "axis"), [(8, 8, 2), (8, 9, 3), (9, 8, 2), (1, 64, 3)])
def test_rows_lie_along_the_longer_axis_of_maps(rows: int, columns: int, axis: int) -> None:
    proto = build.parsed(
        f"""g (float[1,2,{rows},{columns}] x) => (float[1,4] y) {{
            w = Constant<value = float[4,2,1,1] {{1,2,3,4,5,6,7,8}}>()
            a = Conv(x, w) b = Relu(a) c = GlobalAveragePool(b) y = Flatten(c)
        }}"""
    )
    assert _axes(proto)[:3] == [axis] * 3


def test_a_wide_map_takes_what_its_turned_map_takes() -> None:
    arenas = set()
    for rows, columns in ((4, 128), (128, 4)):
        proto = build.parsed(
            f"""g (float[1,2,{rows},{columns}] x) => (float[1,8,n,m] y) {{
                a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)
                b = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(a, u)
                y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(b)
            }}"""
        )
        random = np.random.default_rng(0)
        for name, shape in (("w", (8, 2, 3, 3)), ("u", (8, 8, 3, 3))):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(random.random(shape, np.float32), name))
        fitted = onnxtile.fit(proto, capacity="smallest")
        arenas.add(fitted.after.arena)
        assert fitted.before.arena == 2 * 8 * 4 * 128 * 4
    assert len(arenas) == 1 and max(arenas) < 8_192
