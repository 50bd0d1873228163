"""Each operator of onnx's and onnxruntime's schemas has a row in each table of the package, or a reason why not."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Collection

import onnx
import pytest

from onnxtile.check import operators as published
from onnxtile.deployment import tflite_plan as tflite_problem
from onnxtile.deployment import tflite_replay
from onnxtile.fitting import axis_maps
from onnxtile.fitting.rewrites import split_packed_products as packed
from onnxtile.fusion import islands
from onnxtile.fusion.lower.operator_lowering import OperatorLowering
from onnxtile.inspection import summary as parameters
from onnxtile.inspection import training, work
from onnxtile.inspection import training as gradients
from onnxtile.inspection.quantisation import _BLOCKS, _PORTS
from onnxtile.model import feeds as operands
from onnxtile.model.draws import RANDOM
from onnxtile.model.load import _HOLDING
from onnxtile.model.quantising import DEQUANTISING, FLOAT_MEANINGS, QUANTISING
from onnxtile.model.walk import RESHAPING
from onnxtile.planning import aliases as lawful
from onnxtile.planning import aliases as state_operators
from onnxtile.planning import byte_graph
from onnxtile.shapes.value import CONTROL_FLOW
from onnxtile.system.registry import discover
from onnxtile.tiling import tile as untiled
from onnxtile.tiling.tileable import Tileable
from onnxtile.verification import rounding as before_last
from onnxtile.verification import rounding as one_step
from tests.conftest import ROOT
from tests.operators.reasons import ALL, ONNX, doubled, reasons
from tests.operators.schemas import operators, schemas, with_kernel

MICROSOFT = "com.microsoft::"


def _saved() -> set[str]:
    by_name = [gradients._NOTHING, gradients._INPUT, gradients._OUTPUT, gradients._INPUT_AND_OUTPUT, gradients._ALL]
    by_name += [gradients._INPUTS, gradients._PRODUCT, set(gradients._CHOICE), gradients.STOPS]
    # Those with operands of different kinds are cases of a function.
    told = {name for name in operators() if f'"{name}"' in inspect.getsource(gradients._of_operands)}
    return set().union(*by_name, told)


def _scaled() -> set[str]:
    """Return the operators of which an operand is called a scale or a zero point."""
    marks = ("scale", "zero_point")
    return {one.name for one in schemas() if any(mark in name.lower() for name in one.operands for mark in marks)}


def _with_ports() -> set[str]:
    plain = {*FLOAT_MEANINGS, *_PORTS, *_BLOCKS}
    return {name for name in operators() if name.removeprefix(MICROSOFT) in plain}


def _in_report_of_tile() -> set[str]:
    told = {*untiled._ONNX, *(f"{MICROSOFT}{name}" for name in untiled._MICROSOFT)}
    cut = discover("onnxtile.tiling.operators", Tileable).values()  # type: ignore[type-abstract]
    return told.union(f"{one.domain}::{one.name}" if one.domain else one.name for one in cut)


def _multiplying() -> set[str]:
    return {name for name, rule in work._rules().items() if isinstance(rule, work.Rule)} - {
        name for name in work._rules() if name.startswith(MICROSOFT) and work._rules()[name].name == "without products"
    }


def _cut() -> set[str]:
    quantised = {name for name in operators() if name.removeprefix(MICROSOFT) in FLOAT_MEANINGS}
    return {*axis_maps._RULES, *quantised, "ConvInteger", "MatMulInteger"}


def _standard() -> Collection[str]:
    return {name for name in operators() if "::" not in name}


TABLES: dict[str, tuple[Callable[[], Collection[str]], Callable[[], Collection[str]]]] = {
    "over": (with_kernel, lambda: {*lawful.IN_PLACE, *lawful.VIEWS}),
    "axes": (with_kernel, _cut),
    "work": (with_kernel, work._rules),
    "saves": (_standard, _saved),
    "quantised": (lambda: _scaled() & with_kernel(), _with_ports),
    "contraction": (_multiplying, _in_report_of_tile),
}
"""By table, the operators that it is about, and those that it has."""


@pytest.mark.parametrize("table", TABLES)
def test_an_operator_is_in_a_table_or_has_one_reason(table: str) -> None:
    about, rows = (names() for names in TABLES[table])
    known = reasons(table)
    assert sorted(set(about) - set(rows) - known.keys()) == [], "neither in the table nor in reasons.py"
    assert sorted(known.keys() & set(rows)) == [], "in the table, and in reasons.py"
    assert list(doubled(table)) == []


@pytest.mark.parametrize("table", ALL)
def test_a_reason_is_of_an_operator_that_there_is(table: str) -> None:
    layouts = {"com.microsoft.nchwc::Conv", "com.microsoft::NhwcFusedConv", "com.microsoft::GemmFloat8"}
    assert sorted(reasons(table).keys() - operators() - layouts) == []


def test_the_check_writes_over_what_the_planner_writes_over() -> None:
    """Both tables were written apart; they say the same."""
    contributed = {f"{MICROSOFT}{name}": places for name, places in published.CONTRIBUTED_OVER.items()}
    assert {**published.WRITES_OVER, **contributed} == dict(lawful.IN_PLACE)
    assert {f"{MICROSOFT}{name}" for name in published.SUMMING} == lawful.SEVERAL_RESULTS
    moves = [
        (published.SAME_ELEMENTS, lawful.VIEWS),
        (published.TAKES_PARTS, lawful.CUTS),
        (published.JOINS, lawful.JOINS),
    ]
    assert all(one == other for one, other in moves)


def test_the_certificate_lets_operators_write_over_as_many_operands_as_the_planner() -> None:
    """A bound that forbids less is sound; one that forbids what the planner does is not."""
    assert byte_graph.VIEWS == lawful.VIEWS
    for name, places in lawful.IN_PLACE.items():
        own = name.removeprefix(MICROSOFT)
        assert not byte_graph.COPIES.search(own), name
        assert places is None or min(places) >= byte_graph.ADDED.get(own, 0), name
    loose = {name for name in with_kernel() - lawful.IN_PLACE.keys() if not byte_graph.COPIES.search(name)}
    told = reasons("over")
    assert {name for name in loose - lawful.VIEWS if told[name].reason not in NO_KERNEL_OF_TENSORS} == LOOSE


NO_KERNEL_OF_TENSORS = {
    no.reason for no in ALL["over"] if no.source in {ONNX, "docs/plan.md", "onnxtile/shapes/value.py"}
}
_LOOSE = (
    "Affine Crop ImageScaler MaxUnpool MemcpyFromHost MemcpyToHost ParametricSoftplus ReverseSequence STFT Scale ScaledTanh "
    "com.microsoft::EngramGate com.microsoft::HyperConnectionPostMix com.microsoft::Inverse com.microsoft::MaxpoolWithMask "
    "com.microsoft::MoE com.microsoft::QMoE com.microsoft::UnfoldTensor"
)
LOOSE = set(_LOOSE.split())
"""Operators that the certificate's bound lets write over operands, though no plan does: the bound is lower than it might be."""


def test_an_operator_on_quantised_tensors_is_known_wherever_the_float_one_is() -> None:
    lowered = discover("onnxtile.fusion.operator_lowerings", OperatorLowering)  # type: ignore[type-abstract]
    for name, meaning in FLOAT_MEANINGS.items():
        own = {f"{domain}{name}" for domain in ("", MICROSOFT)} & operators()
        assert own, name
        assert meaning.op_type in axis_maps._RULES, name
        assert own <= work._rules().keys(), name
        assert own <= lowered.keys(), name
        if meaning.op_type in lawful.IN_PLACE and meaning.op_type != "Gemm":
            assert own <= lawful.IN_PLACE.keys(), name
            places = set().union(*(lawful.IN_PLACE[one] or () for one in own))
            assert places <= meaning.scaled, name


def test_operators_that_draw_numbers_are_those_that_onnx_says() -> None:
    # onnx says so of operators with bodies, which may hold such operators, and of AffineGrid, whose function has an If.
    drawing = {one.name for one in schemas() if one.may_differ} - {one.name for one in schemas() if one.has_body}
    assert drawing - {"AffineGrid"} == {name for domain, name in RANDOM if not domain}


def test_operators_with_bodies_are_those_with_graphs_among_their_attributes() -> None:
    holding = {one.name for one in schemas() if one.has_body and "::" not in one.name}
    # The body of a SequenceMap runs on elements of sequences, which have no fixed bytes: it is written out, or left to onnxruntime.
    assert holding - {"SequenceMap"} == CONTROL_FLOW == published.WITH_BODIES
    assert holding | {"Constant"} == _HOLDING
    assert {name for name in published.APPENDS if "::" not in name} <= CONTROL_FLOW | state_operators.OVER


@pytest.mark.parametrize(
    "moving",
    [
        *(lawful.VIEWS, published.SAME_ELEMENTS, byte_graph.VIEWS, islands._MOVES, packed._MOVING, operands._KEEPS),
        *(before_last._MOVING, one_step._MOVING, parameters._SAME_ELEMENTS, training._VIEWS),
    ],
)
def test_what_only_renames_axes_is_in_each_table_of_what_moves(moving: Collection[str]) -> None:
    assert set(moving) >= RESHAPING


ELEMENTWISE = {
    name
    for name, places in lawful.IN_PLACE.items()
    if "::" not in name
    and places in (None, frozenset({0}))
    and name in axis_maps._UNARY.split() + axis_maps._BROADCAST.split()
}
_TRUTHS = {"And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"}
_BITS = {"BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CastLike", "Mod", "Mean"}
_SELDOM = {
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Cosh",
    "Sinh",
    "Tan",
    "Sign",
    "Sin",
    "Cos",
    "Floor",
    "Ceil",
    "Round",
}


@pytest.mark.parametrize("key", ["epilogues", "elementwise", "in_place"])
def test_element_by_element_operators_may_be_in_quantised_islands(key: str) -> None:
    """But for truths and bits, which are not quantised, and functions that no activation is made of."""
    rule = tomllib.loads((ROOT / "patterns" / "quantised" / "island.toml").read_text())["island"]
    seldom = {*_TRUTHS, *_BITS, *_SELDOM, *({"Celu", "Shrink"} if key == "epilogues" else ()), "Cast"}
    assert ELEMENTWISE - seldom - set(rule[key]) == set()
    allowed = {name.removeprefix(MICROSOFT) for name in lawful.IN_PLACE} | {"FastGelu", "QuickGelu"}
    metaops = {"GeLU", "GeLUTanh", "LayerNorm", "RMSNorm", "SiLU", "SkipLayerNorm"}
    assert set(rule["in_place"]) <= allowed | metaops


def test_the_check_of_tensorflow_lite_plans_has_the_planners_operators() -> None:
    assert tflite_replay._LEAVES_ELEMENTS == tflite_problem.VIEWS
    assert tflite_replay._ONE_OPERAND | tflite_replay._TWO_OPERANDS == tflite_problem.ELEMENTWISE


def test_each_name_in_a_table_is_an_operator() -> None:
    # Files name them so that older versions of onnxruntime wrote.
    own = {"QLinearReduceMean", f"{MICROSOFT}LayerNormalization", f"{MICROSOFT}SimplifiedLayerNormalization"}
    for table in ("over", "axes", "work"):
        for name in TABLES[table][1]():
            assert name in operators() | own or "nchwc" in name, f"{table}: {name}"
    for name in (
        *gradients.STOPS,
        *gradients._NOTHING,
        *gradients._INPUT,
        *gradients._CHOICE,
        QUANTISING,
        DEQUANTISING,
    ):
        assert (name in operators() and onnx.defs.has(name)) or name == "SimplifiedLayerNormalization", name
