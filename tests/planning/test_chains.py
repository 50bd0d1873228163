"""Who is before whom in every order, by chains: held against following all paths; graphs that are too wide are refused."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.planning import order_search as chains
from onnxtile.planning.layout import layouts
from onnxtile.planning.order_search import Chains, InEveryOrder, OrderSearch, require_narrow
from onnxtile.planning.orders import find_order
from onnxtile.system.errors import UsageError
from tests import build
from tests.bench.large_graphs import MAKERS
from tests.draws import draws
from tests.planning.conftest import Case
from tests.planning.test_random_graphs import models


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Return of up to twelve nodes those right before each."""
    count = draw(st.integers(0, 12))
    return [tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=3)))) if n else () for n in range(count)]


def all_before(after: list[tuple[int, ...]]) -> list[set[int]]:
    found: list[set[int]] = []
    for before in after:
        found.append({*before}.union(*(found[other] for other in before)))
    return found


@given(graphs())
def test_chains_say_what_all_paths_say(after: list[tuple[int, ...]]) -> None:
    found, paths = Chains(after), all_before(after)
    for node, before in enumerate(paths):
        assert {other for other in range(len(after)) if found.is_before(other, node)} == before
        assert found.through[node].sum() == len(before)
    places = list(zip(found.chain.tolist(), found.place.tolist(), strict=True))
    assert len(set(places)) == len(after)
    for one, (chain, place) in enumerate(places):
        assert all(found.is_before(one, other) for other, at in enumerate(places) if at[0] == chain and at[1] > place)


def test_nodes_in_a_row_take_one_chain() -> None:
    assert Chains([(), *((n,) for n in range(99))]).count == 1
    # Branches of one node each: the chain that ended at a join goes on behind it.
    diamonds = [(), *(step for n in range(0, 60, 3) for step in ((n,), (n,), (n + 1, n + 2)))]
    assert Chains(diamonds).count == 2


@pytest.mark.parametrize(
    ("limit", "words"), [("MOST_NUMBERS", "form 2 chains"), ("MOST_PAIRS", "too many unordered pairs")]
)
def test_a_graph_that_is_too_wide_is_refused(limit: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, limit, 6)
    Chains([(), (0,), (1,), (2,), (3,)])
    with pytest.raises(UsageError, match=f"too wide for the order 'any': .*{words}") as raised:
        Chains([(), (), (), (), (), ()])
    assert "--order model" in (raised.value.hint or "")


@given(graphs())
def test_what_is_refused_in_one_pass_has_too_many_pairs(after: list[tuple[int, ...]]) -> None:
    pairs = len(after) * (len(after) - 1) // 2 - sum(map(len, all_before(after)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "MOST_PAIRS", pairs)
        require_narrow(after)


def test_a_wide_graph_is_refused_before_its_shapes_are_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def noted(what: str, _done: int = 0, _of: int = 0, /) -> None:
        steps.append(what)

    monkeypatch.setattr(chains, "MOST_PAIRS", 100)
    api.plan(MAKERS["chain"](60), order="any", verify=False)
    with pytest.raises(UsageError, match="62 nodes have too many unordered pairs"):
        api.plan(MAKERS["wide"](60), order="any", progress=noted)
    assert steps == ["reading the model"]


def test_nodes_that_measure_sizes_do_not_make_a_graph_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be computed before the run: here 40 of 42 nodes."""
    measured = " ".join(f"s{n} = Shape(x) t{n} = Neg(s{n})" for n in range(20))
    joined = ", ".join(f"t{n}" for n in range(20))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y, int64[40] sizes) {{
            {measured} sizes = Concat<axis = 0>({joined}) y = Relu(x) }}""")
    monkeypatch.setattr(chains, "MOST_PAIRS", 100)
    chains.require_orderable(load(model).graph)


@draws(15, 60)
@given(models(10), st.sampled_from(["outputs", "inside"]))
def test_conflicts_are_the_buffers_in_no_order_that_never_meet(model: onnx.ModelProto, io: str) -> None:
    case = Case.of(model)
    (layout,) = layouts(OrderSearch(case.graph(io=io), 4), find_order("any"), 1)
    assert isinstance(layout.order, InEveryOrder)
    claims, own = layout._claims, layout.order
    expected = set()
    for i, one in enumerate(claims):
        for other in claims[i + 1 :]:
            first, second = sorted((one, other), key=lambda claim: claim.live_range)
            makers = [maker for maker in second.makers if maker is not None]
            apart = all(own.chains.is_before(use, maker) for use in first.uses for maker in makers)
            if first.live_range[1] <= second.live_range[0] and not (apart and len(makers) == len(second.makers)):
                expected.add(frozenset((one.name, other.name)))
    assert {frozenset(pair) for pair in layout.conflicts} == expected
    assert len(layout.conflicts) == len(expected)


def test_too_many_conflicts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MOST_CONFLICTS", 3)
    with pytest.raises(UsageError, match="more than 3 pairs of buffers are unordered"):
        Case.of(ISLANDS).plan(order="any")


ISLANDS = """
islands (float[4,4] x) => (float[4,4] y) {
  a = Transpose(x)
  b = Transpose(a)
  c = Transpose(x)
  d = Transpose(c)
  e = Add(b, d)
  f = Transpose(x)
  g = Transpose(f)
  y = Add(e, g)
}
"""


def test_constants_that_nodes_compute_take_no_chain() -> None:
    # As exporters write them: a Constant node for each weight, which is in no order with any other.
    nodes = []
    for n in range(40):
        value = helper.make_tensor("value", TensorProto.FLOAT, [4], np.ones(4, np.float32))
        nodes.append(helper.make_node("Constant", [], [f"c{n}"], value=value))
        nodes.append(helper.make_node("Add", [f"a{n}", f"c{n}"], [f"a{n + 1}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("a0", "a40")]
    case = Case.of(build.model(nodes, ends[:1], ends[1:], opset=20))
    (layout,) = layouts(OrderSearch(case.graph(), 64), find_order("any"), 1)
    assert isinstance(layout.order, InEveryOrder)
    assert layout.order.chains.count == 1
