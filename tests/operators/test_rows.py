"""Each operator of onnx's and onnxruntime's schemas has a row, and each cell of it is filled or says why not."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import fields

import onnx
import onnx_ir as ir
import pytest

from onnxtile.check import operators as published
from onnxtile.check.graph import BITS
from onnxtile.deployment import micro_proof, tflite_plan
from onnxtile.model.load import _HOLDING
from onnxtile.model.node_kinds import DEQUANTISING, QUANTISING
from onnxtile.operators import reasons, saves
from onnxtile.operators.table import (
    CONTROL_FLOW,
    NO_PRODUCTS,
    NOT_STANDARD,
    FloatMeaning,
    No,
    Operations,
    Operator,
    Products,
    SizeNumbers,
    names_where,
    operators,
)
from onnxtile.system.registry import discover
from onnxtile.tiling.contraction import Tileable
from tests.conftest import ROOT
from tests.operators.schemas import operators as known_operators
from tests.operators.schemas import schemas, with_kernel

MICROSOFT = "com.microsoft::"
WRITTEN_BY_OLDER_VERSIONS = {
    *("QLinearReduceMean", "LayerNormalization", "SimplifiedLayerNormalization", "GemmFloat8", "NhwcFusedConv"),
}
ROWS = operators()


def over(name: str) -> frozenset[int] | No | None:
    return ROWS[name].over


def test_each_operator_has_a_row() -> None:
    assert sorted(known_operators() - ROWS.keys()) == []
    of_no_schema = ROWS.keys() - known_operators() - {"com.microsoft.nchwc::Conv"}
    unknown = {name.removeprefix(MICROSOFT) for name in of_no_schema} - WRITTEN_BY_OLDER_VERSIONS
    assert unknown == set(), "no schema has these: an operator of your own belongs in a package (docs/extending.md)"


def test_each_reason_has_a_source() -> None:
    cells = [getattr(row, field.name) for row in ROWS.values() for field in fields(Operator)]
    given = {cell for cell in cells if isinstance(cell, No)}
    assert all(no.reason and no.source for no in given)
    declared = {value for value in vars(reasons).values() if isinstance(value, No)}
    assert given - declared == {NOT_STANDARD}
    assert declared - given == set(), "reasons that no row has"


@pytest.mark.parametrize("cell", ["over", "reads", "work"])
def test_an_operator_with_a_kernel_says_more_than_that_there_is_none(cell: str) -> None:
    empty = {name for name in with_kernel() if getattr(ROWS[name], cell) == reasons.NO_KERNEL}
    # ONNX defines it as a function that no rule looks into; and onnxruntime has no kernel for its parts.
    assert empty - {"SwiGLU", "com.microsoft::QLinearReduceMean"} == set()


def test_a_standard_operator_says_what_its_gradient_reads() -> None:
    assert [name for name, row in ROWS.items() if row.saves == NOT_STANDARD and "::" not in name] == []


def test_an_operand_that_is_called_a_scale_belongs_to_a_quantised_tensor() -> None:
    marks = ("scale", "zero_point")
    scaled = {one.name for one in schemas() if any(mark in name.lower() for name in one.operands for mark in marks)}
    told = {name for name, row in ROWS.items() if row.quantised is not None or row.ports}
    assert sorted((scaled & with_kernel()) - told) == []


def test_an_operator_with_products_is_cut_or_says_why_not() -> None:
    cut = discover("onnxtile.tiling.operators", Tileable).values()  # type: ignore[type-abstract]
    names = {f"{one.domain}::{one.name}" if one.domain else one.name for one in cut}
    multiplying = {name for name, row in ROWS.items() if isinstance(row.work, Products)}
    told = {name for name, row in ROWS.items() if row.contraction is not None}
    assert sorted(multiplying - names - told) == []
    assert told & names == set()


def test_a_view_and_what_only_renames_axes_agree() -> None:
    renaming = names_where(lambda row: row.moves == "renames")
    assert renaming == {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
    assert names_where(lambda row: row.same == "view") == renaming | {"Cast", "CastLike", "Dropout"}


def test_the_check_writes_over_what_the_planner_writes_over() -> None:
    """Both tables were written apart; they say the same."""
    planned = {name: row.over for name, row in ROWS.items() if not isinstance(row.over, No)}
    assert planned == published.WRITES_OVER
    assert names_where(lambda row: row.over_each) == published.SUMMING
    for kind, names in {
        "view": published.SAME_ELEMENTS,
        "cut": published.TAKES_PARTS,
        "join": published.JOINS,
    }.items():
        assert names == {name for name, row in ROWS.items() if row.same == kind}
    states = {name: dict(row.state) for name, row in ROWS.items() if row.state_over}
    assert {name: dict(places) for name, places in published.APPENDS.items()} == states


def test_the_check_counts_the_products_that_the_planner_counts() -> None:
    assert {name for name in published.FACTORS if not isinstance(ROWS[name].work, Products)} == set()
    assert {name for name in published.WITHOUT_PRODUCTS if not isinstance(ROWS[name].work, Operations)} == set()


def test_the_check_knows_which_operators_draw_random_numbers() -> None:
    assert names_where(lambda row: row.draws) == published.DRAWING


def test_a_certificate_lets_operators_write_over_the_states_that_the_planner_lets_them() -> None:
    """A bound that forbids less is sound; one that forbids what the planner does is not."""
    assert [n for n, row in ROWS.items() if row.state_over and not published.appends(n.removeprefix(MICROSOFT))] == []


def test_the_check_counts_the_bits_of_each_element_type() -> None:
    sized = [one for one in ir.DataType if one not in {ir.DataType.UNDEFINED, ir.DataType.STRING}]
    assert {one.value: one.bitwidth for one in sized if one.value in BITS} == BITS


def test_an_operator_on_quantised_tensors_is_known_wherever_the_float_one_is() -> None:
    from onnxtile.fusion.lower.lowering import OperatorLowering

    lowered = discover("onnxtile.fusion.operator_lowerings", OperatorLowering)  # type: ignore[type-abstract]
    for name, row in ROWS.items():
        meaning = row.quantised
        if not isinstance(meaning, FloatMeaning) or meaning.result is None:
            continue
        assert not isinstance(ROWS[meaning.op_type].reads, No), name
        assert not isinstance(row.work, No), name
        assert name in lowered or name not in known_operators(), name
        plain = ROWS[meaning.op_type].over
        if not isinstance(plain, No) and meaning.op_type != "Gemm":
            assert not isinstance(row.over, No) and set(row.over or ()) <= meaning.scaled, name


def test_operators_that_draw_numbers_are_those_that_onnx_says() -> None:
    # onnx says so of operators with bodies, which may hold such operators, and of AffineGrid, whose function has an If.
    drawing = {one.name for one in schemas() if one.may_differ} - {one.name for one in schemas() if one.has_body}
    assert drawing - {"AffineGrid"} == names_where(lambda row: row.draws and row.is_standard)


def test_operators_with_bodies_are_those_with_graphs_among_their_attributes() -> None:
    holding = {one.name for one in schemas() if one.has_body and "::" not in one.name}
    # The body of a SequenceMap runs on elements of sequences, which have no fixed bytes: it is written out, or left to onnxruntime.
    assert holding - {"SequenceMap"} == CONTROL_FLOW == published.WITH_BODIES
    assert holding | {"Constant"} == _HOLDING


COMPARING: Callable[[Operator], bool] = lambda row: row.truths  # noqa: E731 - the cache of names needs one object


def test_operators_of_truths_are_those_whose_results_have_one_type() -> None:
    found = set()
    for schema in onnx.defs.get_all_schemas():
        if schema.domain == "" and len(schema.outputs) == 1:
            types = {
                constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in schema.type_constraints
            }
            own = types.get(schema.outputs[0].type_str, {schema.outputs[0].type_str})
            if own == {"tensor(bool)"}:
                found.add(schema.name)
    assert found - {"OptionalHasElement", "RegexFullMatch"} == names_where(COMPARING)


ELEMENTWISE = {
    name
    for name, row in ROWS.items()
    if row.is_standard
    and row.over in (None, frozenset({0}))
    and getattr(row.reads, "__name__", "") in {"same_place", "broadcast"}
}
_BITS = {"BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "CastLike", "Mod", "Mean"}
_SELDOM = set(
    [
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
    ]
)


@pytest.mark.parametrize("key", ["epilogues", "elementwise", "in_place"])
def test_element_by_element_operators_may_be_in_quantised_islands(key: str) -> None:
    """But for truths and bits, which are not quantised, and functions that no activation is made of."""
    rule = tomllib.loads((ROOT / "patterns" / "quantised" / "island.toml").read_text())["island"]
    truths = names_where(COMPARING)
    seldom = {*truths, *_BITS, *_SELDOM, *({"Celu", "Shrink"} if key == "epilogues" else ()), "Cast"}
    assert ELEMENTWISE - seldom - set(rule[key]) == set()
    written_over = {name.removeprefix(MICROSOFT) for name, row in ROWS.items() if not isinstance(row.over, No)}
    metaops = {"GeLU", "GeLUTanh", "LayerNorm", "RMSNorm", "SiLU", "SkipLayerNorm"}
    assert set(rule["in_place"]) <= written_over | {"FastGelu", "Gelu", "QuickGelu"} | metaops


def test_the_check_of_tensorflow_lite_plans_has_the_planners_operators() -> None:
    assert micro_proof._LEAVES_ELEMENTS == tflite_plan.VIEWS
    assert micro_proof._ONE_OPERAND | micro_proof._TWO_OPERANDS == tflite_plan.ELEMENTWISE


def test_what_computes_sizes_grows_by_operands_that_say_the_shape() -> None:
    for name, row in ROWS.items():
        if row.grows is not None:
            assert {row.grows.by, row.grows.shrinks_by} - {None} <= set(row.shaped_by), name
        assert row.numbers is None or isinstance(row.numbers, SizeNumbers)


def test_what_stops_a_gradient_keeps_nothing() -> None:
    assert {QUANTISING, DEQUANTISING} & names_where(lambda row: row.saves is saves.stops) == set()
    assert ROWS["Conv"].work is not NO_PRODUCTS


def test_a_row_has_no_other_cells() -> None:
    with pytest.raises(TypeError, match="no cell 'raeds'"):
        ROWS["Relu"].rows("Twin", raeds=ROWS["Relu"].reads)
