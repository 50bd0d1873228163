"""What kernels read and make, and what is read of a model in ONNX."""

from __future__ import annotations

from onnxtile.kernels.kernel_graph import ARENA, AROUND, CONSTANT, NONE, OUTSIDE, ByteSpan, Share, TensorRead
from tests.kernels.plain import PlainGraph
from tests.planning.conftest import Case

SPLIT = """
g (float[4,4] x) => (float[8,4] y) {
  w = Constant<value = float[4,4] {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>()
  sizes = Constant<value = int64[2] {1, 3}>()
  a = Add(x, w)
  b, c = Split<axis = 0>(a, sizes)
  d = Identity(a)
  y = Concat<axis = 0>(d, c, b)
}
"""


def test_each_tensor_knows_its_maker_and_its_readers() -> None:
    made = PlainGraph()
    x = made.tensor(8)
    a = made.compute([x], 8, over=True)
    b = made.view(a)
    c = made.view(b)
    made.join([a, c, a])
    graph = made.graph(1, inside=True)
    assert (graph.makers, graph.readers) == ((NONE, 0, 1, 2, 3), ((0,), (1, 3), (2,), (3,), ()))
    assert graph.after == ((), (0,), (1,), (0, 2))
    assert [graph.root(tensor) for tensor in range(5)] == [0, 1, 1, 1, 4]
    assert graph.kept == {x, 4}
    assert graph.sizes(graph.own_order) == {0: 8, 1: 8, 2: 8, 3: 8, 4: 24}


def test_the_bytes_that_a_model_reads_and_may_share_are_numbers() -> None:
    graph = Case.of(SPLIT).graph()
    number = {tensor.name: place for place, tensor in enumerate(graph.tensors)}
    split, identity, concat = graph.kernels[3:]
    a, b, c, d, y = (number[name] for name in "abcdy")
    assert split.reads[0] == TensorRead(a, (ByteSpan(0, 16), ByteSpan(16, 64)))
    assert split.shares == (Share("cut", b, a, 0), Share("cut", c, a, 16))
    assert (identity.shares, graph.root(d)) == ((Share("view", d, a),), a)
    assert concat.shares == (Share("join", y, d), Share("join", y, c, -64), Share("join", y, b, -112))
    assert {name: graph.tensors[place].role for name, place in number.items()} == {
        "x": OUTSIDE, "w": CONSTANT, "sizes": CONSTANT, **dict.fromkeys("abcdy", ARENA)
    }  # fmt: skip
    assert [graph.is_computed(kernel) for kernel in graph.kernels] == [True, True, False, False, False, False]


def test_a_body_is_a_graph_of_its_own() -> None:
    text = """
    g (float[4] x, bool p) => (float[4] y) {
      a = Neg(x)
      y = If (p) <then_branch = t () => (float[4] u) { u = Exp(a) }, else_branch = e () => (float[4] v) { v = Neg(a) }>
    }
    """
    graph = Case.of(text).graph(io="inside")
    branch = graph.kernels[1]
    assert [body.attribute for body in branch.bodies] == ["then_branch", "else_branch"]
    then = branch.bodies[0].graph
    assert {tensor.name: tensor.role for tensor in then.tensors} == {"a": AROUND, "u": ARENA}
    assert [graph.tensors[read.tensor].name for read in branch.reads] == ["p", "a"]
    assert then.shares() is not None and not then.after[0]
