"""The properties that hold for every valid model: each is a function of a case, and raises AssertionError where it does not hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx

import onnxtile
from onnxtile.model.save import to_bytes
from onnxtile.system.errors import Infeasible, Mismatch, ModelError
from tests.random_graphs.carried_out import Run
from tests.random_graphs.drawing import OPSETS, in_order
from tests.random_graphs.generator import RandomModel
from tests.random_graphs.kernels import Array, Kernels, captured, run_model
from tests.random_graphs.meaning import differences

Result = TypeVar("Result")


@dataclass(frozen=True)
class Case:
    """A random model with values for its inputs; `verify` lets the verbs run what they make, too."""

    random_model: RandomModel
    verify: bool = False

    @property
    def seed(self) -> int:
        """The seed of the model."""
        return self.random_model.seed

    @property
    def model(self) -> onnx.ModelProto:
        """The model."""
        return self.random_model.model

    @cached_property
    def feeds(self) -> dict[str, Array]:
        """Values for the inputs."""
        return self.random_model.feeds(self.seed)

    @cached_property
    def expected(self) -> dict[str, Array]:
        """The outputs of the model."""
        return run_model(self.model, self.feeds)

    @cached_property
    def has_halves(self) -> bool:
        """Whether float16 or bfloat16 is in the model: onnxruntime then computes some nodes together, without rounding between."""
        attributes = (attribute for node in _all_nodes(self.model) for attribute in node.attribute)
        if any(attribute.name == "to" and attribute.i in {10, 16} for attribute in attributes):
            return True
        return any(info.type.tensor_type.elem_type in {10, 16} for info in self.model.graph.input)

    @cached_property
    def has_containers(self) -> bool:
        """Whether a value of the model is a sequence or an optional one."""
        given = (info.type.WhichOneof("value") for info in self.model.graph.input)
        made = (node.op_type for node in _all_nodes(self.model))
        return any(kind != "tensor_type" for kind in given) or any(
            kind.startswith(("Sequence", "Optional", "SplitTo")) for kind in made
        )

    def random(self, of: str) -> Random:
        """Return the choices of one property."""
        return Random(f"{self.seed} {of}")

    def require_same(self, got: Mapping[str, Array], *, exact: bool, but: frozenset[str] = frozenset()) -> None:
        """Raise AssertionError unless the outputs, save those `but`, are equal: to the bit, or as far as rounding explains."""
        assert got.keys() == self.expected.keys()
        for name, expected in self.expected.items():
            if name in but | self.random_model.unrepeated:
                continue
            exact_here = exact and not self.has_halves
            require_equal(name, got[name], expected, exact=exact_here, halves=self.has_halves, rounding=self.rounding)

    @cached_property
    def rounding(self) -> float:
        """What rounding may change: all that is left where values cancel, as in the sum of a norm. One float16 is rounded so."""
        given = [array for array in (*self.feeds.values(), *self.expected.values()) if isinstance(array, np.ndarray)]
        floats = (array[np.isfinite(array)] for array in given if array.dtype.kind == "f")
        largest = max((float(np.abs(array, dtype=np.float64).max(initial=0)) for array in floats), default=0)
        return largest * 2.0 ** (-10 if self.has_halves else -20)


def require_equal(
    name: str, got: Array, expected: Array, *, exact: bool, halves: bool = False, rounding: float = 0.0
) -> None:
    """Raise AssertionError unless both are equal: to the bit, or as far as rounding explains, of `halves` where the model has some.

    An error of `rounding` is always explained.
    """
    assert got.dtype == expected.dtype and got.shape == expected.shape, (
        f"{name}: {got.dtype}{got.shape} {expected.dtype}{expected.shape}"
    )
    if exact or expected.dtype.kind not in "fV":
        assert np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"), f"{name!r} differs"
        return
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    loose = 2e-2 if halves or expected.dtype != np.float32 else 1e-3
    assert np.allclose(a, b, rtol=loose, atol=max(loose * scale, rounding), equal_nan=True), (
        f"{name!r} is off by {np.nanmax(np.abs(a - b))}"
    )


def written(model: Any) -> onnx.ModelProto:
    """Return the file that a result writes, which the checker accepts."""
    found = onnx.ModelProto.FromString(to_bytes(model))
    onnx.checker.check_model(found)
    return found


def fuse_and_back(case: Case) -> None:
    """Fuse keeps the bits, twice is once, the same bytes come twice, and unfuse gives the file back."""
    result = onnxtile.fuse(case.model, verify=case.verify)
    data = to_bytes(result.model)
    model = written(result.model)
    case.require_same(run_model(model, case.feeds), exact=True)
    assert to_bytes(onnxtile.fuse(case.model, verify=False).model) == data, "the same bytes do not come twice"
    again = onnxtile.fuse(model, verify=False)
    assert not again.fused, f"fuse finds {again.fused} more meta-ops in what it has fused"
    assert to_bytes(again.model) == data, "fused again, the file differs"
    if not result.fused:
        _require_same_file(case.model, model)
        return
    restored = onnxtile.unfuse(model, verify=case.verify)
    _require_same_file(case.model, written(restored.model))


def _require_same_file(expected: onnx.ModelProto, got: onnx.ModelProto) -> None:
    found = differences(expected, got)
    assert not found, "; ".join(found[:3])


def another_order(case: Case) -> None:
    """Nodes in another legal order are fused as well."""
    other = shuffled(case.model, case.random("order"))
    one, two = (onnxtile.fuse(model, verify=False) for model in (case.model, other))
    assert [len(p.calls) for p in one.patterns] == [len(p.calls) for p in two.patterns], (
        "another order is fused otherwise"
    )
    model = written(two.model)
    case.require_same(run_model(model, case.feeds), exact=True)
    if two.fused:
        _require_same_file(other, written(onnxtile.unfuse(model, verify=False).model))


def shuffled(model: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """Return `model` with the nodes of its main graph in another legal order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    left = list(model.graph.node)
    made = {name for node in left for name in node.output}
    known: set[str] = set()
    copy.graph.ClearField("node")
    while left:
        ready = [node for node in left if not ((set(node.input) | captured(node)) & made) - known]
        node = random.choice(ready)
        left.remove(node)
        known.update(node.output)
        copy.graph.node.append(node)
    return copy


_NO_TENSORS = "fit takes models of tensors only"
"""Of the message with which fit refuses sequences and optional values."""
_SPLIT_WORDS = re.compile("depends on the data \\(StringSplit")
"""Of the message with which fit refuses the parts of strings, which no number bounds."""


_NO_DRAWS = re.compile("has no kernel for (Bernoulli|Multinomial|Random)")
"""Of the message of a run of a model that was raised to an opset of which onnxruntime has no random operators."""


def may_refuse(case: Case, error: object) -> bool:
    """Return whether `error` is one with which a model such as that of `case` is refused with reason."""
    text = str(error)
    if case.random_model.drawn and _NO_DRAWS.search(text):
        return True
    return (case.has_containers and _NO_TENSORS in text) or _SPLIT_WORDS.search(text) is not None


def fitted(case: Case, make: Callable[[], Result]) -> Result | None:
    """Return the result of `make`, which calls fit; None as `attempted` says, and where fit may refuse the model."""
    try:
        return attempted(case, make)
    except ModelError as error:
        if not may_refuse(case, error):
            raise
        return None


def attempted(case: Case, make: Callable[[], Result]) -> Result | None:
    """Return the result of `make`; None where nothing fits, or where only steps of quantisation or the last bits of float16 differ."""
    try:
        return make()
    except Infeasible:
        return None
    except Mismatch as error:
        if not case.random_model.stepped and not (case.has_halves and "to the last bit" in str(error)):
            raise
        return None


def spell_out_swish(model: onnx.ModelProto) -> None:
    """Write each Swish as its definition: onnxruntime 1.31 has no kernel of this operator of ONNX, which the lowering to `onnx` writes."""
    _spell_out_swish(model.graph)
    for function in model.functions:
        _spell_out_swish(function)


def _spell_out_swish(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    nodes = list(graph.node)
    graph.ClearField("node")
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _spell_out_swish(attribute.g)
        if node.op_type != "Swish":
            graph.node.append(node)
            continue
        (x,), (y,) = node.input, node.output
        alpha, scaled, between = f"{y} (alpha)", f"{y} (scaled)", f"{y} (sigmoid)"
        number = onnx.helper.make_node("Constant", [], [f"{alpha} float"], value_float=_alpha(node))
        graph.node.append(number)
        graph.node.append(onnx.helper.make_node("CastLike", [f"{alpha} float", x], [alpha]))
        graph.node.append(onnx.helper.make_node("Mul", [x, alpha], [scaled]))
        graph.node.append(onnx.helper.make_node("Sigmoid", [scaled], [between]))
        graph.node.append(onnx.helper.make_node("Mul", [x, between], [y]))


def _alpha(node: onnx.NodeProto) -> float:
    return node.attribute[0].f if node.attribute else 1.0


def require_drawn_alike(case: Case, model: onnx.ModelProto, *, ordered: bool = True) -> None:
    """Raise AssertionError unless `model` has the random operators of the case, in their order where that is to be `ordered`.

    One that nothing reads may be gone: what is read shows in the outputs.
    """
    expected, got = in_order(case.model), in_order(model)
    if not ordered:
        expected, got = sorted(expected, key=str), sorted(got, key=str)
    left = iter(expected)
    assert all(one in left for one in got), f"the random operators {expected} became {got}"


def lower(case: Case) -> None:
    """Lowered meta-ops compute the same as far as rounding explains."""
    target = case.random("lower").choice(["onnx", "ort", "qdq"])
    try:
        result = onnxtile.fuse(case.model, lower=target, verify=case.verify)
    except Mismatch as error:
        if not case.random_model.stepped and not (case.has_halves and "to the last bit" in str(error)):
            raise
        return
    except ModelError as error:
        if not may_refuse(case, error):
            raise
        return
    model = written(result.model)
    require_drawn_alike(case, model)
    if target == "onnx":
        spell_out_swish(model)
    if may_run(model):
        case.require_same(run_model(model, case.feeds), exact=False, but=case.random_model.stepped)


def may_run(model: onnx.ModelProto) -> bool:
    """Return whether onnxruntime has kernels of the random operators of `model`: of opset 22 it has those of Dropout only."""
    standard = max(one.version for one in model.opset_import if one.domain == "")
    return standard <= OPSETS[-1] or all(op == "Dropout" for op, _ in in_order(model))


def tile(case: Case) -> None:
    """Tiles compute the same as far as rounding explains."""
    random = case.random("tile")
    options: dict[str, Any] = {"max": random.choice([2, 3, 4, 5, 8]), "conv": random.random() < 0.6}
    options |= random.choice(
        [{}, {"accumulate": "sum"}, {"accumulate": "tree"}, {"accumulate": "gemm"}, {"wrap": True}]
    )
    if random.random() < 0.2:
        options = {"max": "512B", "conv": True}
    source = onnxtile.fuse(case.model, verify=False).model if random.random() < 0.3 else case.model
    result = attempted(case, lambda: onnxtile.tile(source, dims=case.random_model.dims, verify=case.verify, **options))
    if result is None:
        return
    model = written(result.model)
    require_drawn_alike(case, model)
    case.require_same(run_model(model, case.feeds), exact=False, but=case.random_model.stepped)


PLANS: tuple[dict[str, Any], ...] = (
    {},
    {"order": "model", "io": "inside"},
    {"order": "min-peak", "io": "outside", "alignment": 1},
    {"order": "any"},
    {"order": "any", "io": "inside", "alignment": 16},
    {"target": {"streams": 3}},
    {"target": {"streams": 2}, "io": "inside"},
    {"io": "overwrite", "alignment": 4},
    {"io": "outside", "layout": {"whole_buffers": True}},
    {"search": "slots"},
    {"search": "greedy-by-size", "alignment": 8},
    {"search": "naive"},
    {"kernels": "nodes"},
    {"layout": {"workspaces": {"MatMul": "100", "Conv": "inputs[0].bytes"}}},
    {"layout": {"workspaces": {"MatMul": "100", "Softmax": "64", "*": "shared"}}},
)


def plan(case: Case) -> None:
    """A plan is carried out at its addresses, names every value, and comes twice as the same bytes."""
    random = case.random("plan")
    options = {"search": "greedy-by-size", **random.choice(PLANS), "dims": case.random_model.dims}
    fused = random.random() < 0.3
    source = onnxtile.fuse(case.model, verify=False).model if fused else case.model
    result = onnxtile.plan(source, verify=case.verify, **options)
    found = result.plan.to_dict()
    model = written(result.model)
    kernels = Kernels(model)
    plain = Run(model, without_addresses(found), kernels).outputs(case.feeds)
    # A session of one node does not pack the weights of products, which changes how these are rounded.
    # The session of a node that is run several times goes on with other numbers.
    case.require_same(plain, exact=False, but=case.random_model.stepped | case.random_model.drawn)
    for seed in (None, case.seed, case.seed + 1) if "target" in options or options.get("order") == "any" else (None,):
        for name, got in Run(model, found, kernels, seed=seed).outputs(case.feeds).items():
            if name not in case.random_model.drawn:
                require_equal(name, got, plain[name], exact=True)
    _require_all_named(model, found)
    again = onnxtile.plan(source, verify=False, **options)
    assert to_bytes(again.model) == to_bytes(result.model), "the same plan does not come twice"
    assert json.dumps(again.plan.to_dict()) == json.dumps(found), "the same JSON does not come twice"


def without_addresses(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan with all tensors outside the arenas."""
    bodies = [without_addresses(body) for body in plan["bodies"]]
    return {**plan, "buffers": [], "bodies": bodies}


def _require_all_named(model: onnx.ModelProto, plan: Mapping[str, Any]) -> None:
    """Raise AssertionError where a value has no address, no place among the constants, and no reason to be outside."""
    named = {row["name"] for row in (*plan["constants"], *plan["outside"], *plan["unplanned"])}
    _require_named(list(model.graph.node), [t.name for t in model.graph.initializer], plan, named)


def _require_named(nodes: list[onnx.NodeProto], constants: list[str], plan: Mapping[str, Any], named: set[str]) -> None:
    here = named | {row["name"] for row in plan["buffers"]}
    for name in [*constants, *(name for node in nodes for name in node.output if name)]:
        assert name in here or any(one.endswith(f"/{name}") for one in named), f"{name!r} has no place and no reason"
    by_result = {name: node for node in nodes for name in node.output if name}
    ids = {
        name: next(one for one in names if one) for name, names in zip(plan["schedule"], plan["results"], strict=True)
    }
    for body in plan["bodies"]:
        if body["attribute"] is None:
            continue
        graph = next(a.g for a in by_result[ids[body["node"]]].attribute if a.name == body["attribute"])
        _require_named(list(graph.node), [t.name for t in graph.initializer], body, named)


def fit(case: Case) -> None:
    """A model that is cut to fit computes the same as far as rounding explains."""
    random = case.random("fit")
    options: dict[str, Any] = {"dims": case.random_model.dims, "verify": case.verify}
    planned = onnxtile.plan(case.model, verify=False, search="greedy-by-size", dims=case.random_model.dims).plan
    capacity = int(planned.arena_size * random.choice([0.6, 0.75, 0.9])) // 64 * 64
    if planned.unplanned or capacity < 64:
        return
    result = fitted(case, lambda: onnxtile.fit(case.model, capacity=capacity, **options))
    if result is None:
        return
    model = written(result.model)
    require_drawn_alike(case, model)
    case.require_same(run_model(model, case.feeds), exact=False, but=case.random_model.stepped)


def inspected(case: Case) -> None:
    """Inspect, match and verify read every model."""
    onnxtile.inspect(case.model, dims=case.random_model.dims).to_dict()
    onnxtile.match(case.model, "MatMul-*>Add?").to_dict()
    verdict = onnxtile.verify(case.model, onnxtile.fuse(case.model, verify=False).model, runs=1)
    assert verdict.equal
    assert not verdict.not_compared


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    todo, found = [*model.graph.node, *(node for one in model.functions for node in one.node)], []
    while todo:
        node = todo.pop()
        found.append(node)
        todo += [inner for attribute in node.attribute if attribute.HasField("g") for inner in attribute.g.node]
    return found


PROPERTIES: dict[str, tuple[Callable[[Case], None], float]] = {
    "fuse": (fuse_and_back, 1.0),
    "order": (another_order, 0.3),
    "lower": (lower, 0.35),
    "tile": (tile, 0.35),
    "plan": (plan, 0.6),
    "fit": (fit, 0.05),
    "inspect": (inspected, 0.1),
}
"""The properties, and how often each is asked of a model."""
