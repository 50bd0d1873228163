"""Random small graphs of operators that move bytes: whatever is asked for, the plan passes the check and its run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile.planning.layout import Layout, _Smallest
from onnxtile.verbs.flows.plan import plan
from tests import build
from tests.draws import draws

Shape = tuple[int, ...]


class Builder:
    """A graph that grows by one node at a time; its `shapes` are those of all tensors so far."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.shapes: dict[str, Shape] = {f"x{i}": draw(st.sampled_from([(1, 8), (4, 2)])) for i in range(2)}
        self.inputs = list(self.shapes)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        """Return the graph as a model; what nobody reads is an output."""
        read = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.shapes if name not in read and name not in self.inputs]
        infos = {name: helper.make_tensor_value_info(name, 1, shape) for name, shape in self.shapes.items()}
        return build.model(
            self.nodes, [infos[n] for n in self.inputs], [infos[n] for n in ends], self.constants, opset=18
        )

    def add(self) -> None:
        """Add a node."""
        kinds: list[Callable[[str, Shape], None]] = [
            self.alone,
            self.both,
            self.joined,
            self.joined,
            self.cut,
            self.sliced,
            self.sliced,
            self.view,
        ]
        name = self.draw(st.sampled_from(list(self.shapes)))
        self.draw(st.sampled_from(kinds))(name, self.shapes[name])

    def alone(self, name: str, shape: Shape) -> None:
        """Add an operator of one operand."""
        operator = self.draw(st.sampled_from(["Relu", "Sin", "Softmax", "Identity", "Transpose"]))
        self.put(operator, [name], [shape[::-1] if operator == "Transpose" else shape])

    def both(self, name: str, shape: Shape) -> None:
        """Add an operator of two operands of one shape."""
        self.put("Add", [name, self.draw(st.sampled_from([n for n, s in self.shapes.items() if s == shape]))], [shape])

    def joined(self, name: str, shape: Shape) -> None:
        """Add a Concat."""
        fit = [n for n, other in self.shapes.items() if len(other) == len(shape) and other[1:] == shape[1:]]
        names = [name, *self.draw(st.lists(st.sampled_from(fit), min_size=1, max_size=2))]
        self.put("Concat", names, [(sum(self.shapes[n][0] for n in names), *shape[1:])], axis=0)

    def cut(self, name: str, shape: Shape) -> None:
        """Add a Split in two along the first axis that is longer than 1."""
        axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
        if axis is not None:
            sizes = [1, shape[axis] - 1]
            results = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
            self.put("Split", [name, self.numbers(sizes)], results, axis=axis)

    def sliced(self, name: str, shape: Shape) -> None:
        """Add a Slice of the first axis: others may be taken from the same tensor before and after."""
        start = self.draw(st.integers(0, shape[0] - 1))
        end = self.draw(st.integers(start + 1, shape[0]))
        self.put("Slice", [name, *map(self.numbers, ([start], [end], [0]))], [(end - start, *shape[1:])])

    def view(self, name: str, shape: Shape) -> None:
        """Add a Reshape."""
        size = math.prod(shape)
        wanted = self.draw(st.sampled_from([(size,), (1, size), (size, 1)]))
        self.put("Reshape", [name, self.numbers(wanted)], [wanted])

    def numbers(self, of: Any) -> str:
        """Add a constant."""
        self.constants.append(numpy_helper.from_array(np.asarray(of, np.int64), f"k{len(self.constants)}"))
        return self.constants[-1].name

    def put(self, operator: str, names: list[str], results: list[Shape], **attributes: Any) -> None:
        """Add a node with `results` of these shapes."""
        made = {f"v{len(self.shapes) + i}": shape for i, shape in enumerate(results)}
        self.nodes.append(helper.make_node(operator, names, list(made), **attributes))
        self.shapes.update(made)


@st.composite
def models(draw: st.DrawFn, most: int = 14) -> onnx.ModelProto:
    """Models of 1 to `most` nodes."""
    builder = Builder(draw)
    builder.alone("x0", builder.shapes["x0"])
    for _ in range(draw(st.integers(0, most - 1))):
        builder.add()
    return builder.model()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "any"},
        {"order": "min-peak", "io": "inside"},
        {"target": {"streams": 3}},
        {"io": "overwrite", "alignment": 4},
        {"io": "outside", "alignment": 1},
    ],
    ids=str,
)
@draws(15, 60)
@given(model=models())
def test_a_plan_of_a_random_graph_is_sound_and_its_run_equal(options: dict[str, Any], model: onnx.ModelProto) -> None:
    result = plan(model, search="greedy-by-size", **options)  # the search is tried elsewhere
    assert not result.plan.unplanned
    assert result.verdict is not None and result.verdict.equal


@draws(15, 60)
@given(model=models(), alignment=st.sampled_from([1, 4, 64]))
def test_parts_of_a_random_graph_are_sound_also_where_they_save_nothing(model: onnx.ModelProto, alignment: int) -> None:
    def enter(self: Any, layout: Layout) -> None:
        """Place `layout` with its outlines, whether these make the arena smaller or not."""
        self._keep(layout, self.allocate(layout.problem))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Smallest, "enter", enter)
        result = plan(model, search="greedy-by-size", alignment=alignment)
    assert result.verdict is not None and result.verdict.equal
