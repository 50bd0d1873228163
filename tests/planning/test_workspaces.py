"""Workspaces: by rule or as a pattern declares them, one for all kernels or one for each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile import api
from onnxtile.planning.workspaces import WorkspaceRules
from onnxtile.shapes.size_rule import SizeRule
from onnxtile.system.errors import CheckFailed, ModelError, PatternError, UsageError
from tests.build import Find
from tests.draws import draws
from tests.planning.conftest import Case
from tests.planning.test_random_graphs import models

CHAIN = """
chain (float[1,2,8,8] x, float[3,2,3,3] w) => (float[1,3,6,6] y) {
  a = Neg(x)
  b = Conv(a, w)
  c = Exp(b)
  y = Softmax(c)
}
"""


def rules(shared: bool = False, **texts: str) -> Any:
    return {"workspaces": WorkspaceRules.from_texts(texts, shared)}


def test_a_kernel_has_its_workspace_while_it_runs() -> None:
    case = Case.of(CHAIN)
    result = case.plan(**rules(Conv="outputs[0].size * inputs[1].shape[1] * 36", Softmax="100"))
    found = {b.name: (b.size, b.first, b.last, b.node) for b in result.buffers if b.kind == "workspace"}
    assert found == {"b (workspace)": (7776, 1, 1, "b"), "y (workspace)": (100, 3, 3, "y")}
    assert result.peak == 512 + 448 + 7808 == result.arena_size
    assert case.run(result).equal


def test_all_kernels_share_the_largest() -> None:
    case = Case.of(CHAIN)
    result = case.plan(**rules(shared=True, Conv="3000", Softmax="100"))
    (workspace,) = (b for b in result.buffers if b.kind == "workspace")
    assert (workspace.name, workspace.size, workspace.first, workspace.last, workspace.node) == (
        "(workspace)",
        3000,
        1,
        3,
        None,
    )
    assert case.run(result).equal


@pytest.mark.parametrize(("workspace", "onto"), [("b", "a"), ("b", "b"), ("y", "c"), ("y", "y")])
@pytest.mark.parametrize("shared", [False, True])
def test_a_workspace_on_an_operand_or_a_result_is_noticed(workspace: str, onto: str, shared: bool) -> None:
    case = Case.of(CHAIN)
    result = case.plan(planner="naive", share=("view",), **rules(shared=shared, Conv="100", Softmax="100"))
    assert case.run(result).equal
    offset = next(b.offset for b in result.buffers if b.name == onto)
    name = "(workspace)" if shared else f"{workspace} (workspace)"
    moved = tuple(replace(b, offset=offset) if b.name == name else b for b in result.buffers)
    verdict = case.run(replace(result, buffers=moved))
    assert not verdict.equal


def test_a_workspace_outside_of_the_arena_is_refused() -> None:
    case = Case.of(CHAIN)
    result = case.plan(**rules(Conv="100"))
    moved = tuple(replace(b, offset=result.arena_size) if b.kind == "workspace" else b for b in result.buffers)
    with pytest.raises(CheckFailed, match=r"'b \(workspace\)' outside of the arena"):
        case.run(replace(result, buffers=moved))


@pytest.mark.parametrize("order", ["model", "min-peak", "any"])
def test_workspaces_in_every_order(order: str, light: Find) -> None:
    case = Case.of(light("squeezenet"))
    result = case.plan(order=order, **rules(Conv="inputs[0].bytes // 2"))
    assert sum(b.kind == "workspace" for b in result.buffers) == 26
    assert case.run(result, runs=1).equal


@pytest.mark.parametrize("options", [{"order": "any"}, {"streams": 2}])
def test_nodes_that_may_run_at_once_share_none(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot share one workspace"):
        Case.of(CHAIN).plan(**options, **rules(shared=True, Conv="64"))


def test_a_pattern_declares_what_its_meta_op_needs(tmp_path: Path) -> None:
    file = tmp_path / "soft.toml"
    query = "query = 'Exp->Softmax'"
    file.write_text(f'name = "Soft"\ndoc = "d"\nworkspace = "2 * outputs[0].bytes"\n[[variants]]\n{query}\n')
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{CHAIN}')
    case = Case.of(api.fuse(model, [str(file)]).model)
    workspace = next(b for b in case.plan().buffers if b.kind == "workspace")
    assert (workspace.size, workspace.node) == (2 * 432, case.plan().schedule[-1])
    assert next(b for b in case.plan(**rules(Soft="64")).buffers if b.kind == "workspace").size == 64
    assert case.run(case.plan()).equal


def test_a_declaration_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "soft.toml"
    file.write_text('name = "Soft"\ndoc = "d"\nworkspace = "a lot"\n[[variants]]\nquery = "Exp->Softmax"\n')
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{CHAIN}')
    with pytest.raises(PatternError, match=r"soft.toml:3: workspace: not a number of bytes: 'a lot'"):
        api.fuse(model, [str(file)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("max(inputs[0].bytes, outputs[0].bytes) + 1", 513),
        ("inputs[1].shape[-1] * inputs[1].rank - 2", 10),
        ("inputs[0].size // 3", 42),
    ],
)
def test_rules(text: str, expected: int) -> None:
    case = Case.of(CHAIN)
    assert SizeRule(text).bytes(list(case.model.graph)[1], case.shapes) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.5",
        "inputs",
        "inputs[0]",
        "inputs[0].name",
        "inputs[0].shape",
        "__import__('os')",
        "1 if 2 else 3",
        "2 ** 9",
        "True",
        "+".join(["1"] * 5000),
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number of bytes"):
        SizeRule(text)


@pytest.mark.parametrize("text", ["inputs[2].bytes", "outputs[1].size", "inputs[0].shape[7]", "1 // 0", "1 - 2"])
def test_a_rule_that_does_not_fit_names_the_node(text: str) -> None:
    with pytest.raises(ModelError, match=r"the workspace .* of the node 'b'"):
        Case.of(CHAIN).plan(**rules(Conv=text))


def test_a_rule_for_an_unknown_operator_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown operator 'Convv'") as refused:
        Case.of(CHAIN).plan(**rules(Convv="1"))
    assert refused.value.hint == "did you mean 'Conv'?"


JOINED = """
joined (float[64,64] x) => (float[128,64] y) {
  a = Sin(x)
  s = Softmax(a)
  b = Transpose(x)
  y = Concat<axis = 0>(s, b)
}
"""


def test_an_operand_lies_in_its_concat_only_where_no_workspace_is_in_the_way() -> None:
    # In its place in y, s would hold the bytes of b, too, while the Softmax needs its workspace.
    case = Case.of(JOINED)
    assert case.plan(**rules(Softmax="100000")).peak == 16_384 + 100_032
    assert case.plan().copies.avoided == 2
    assert case.run(case.plan(**rules(Softmax="100000"))).equal


@draws(12, 50)
@given(model=models(8), order=st.sampled_from(["model", "any"]))
def test_parts_in_place_never_raise_the_peak(model: onnx.ModelProto, order: str) -> None:
    case = Case.of(model)
    spaces = rules(Softmax="48", Transpose="outputs[0].bytes", Concat="40", Add="64")
    whole, parts = (
        case.plan(order=order, alignment=4, share=share, **spaces) for share in (("view", "in place"), None)
    )
    assert parts.peak <= whole.peak


AFTER_THE_WIDE_ONE = """
turns (float[16,16] x) => (float[16,16] y) {
  widest = Concat<axis = 1>(x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x)
  sum = ReduceSum<keepdims = 0>(widest)
  wide = Concat<axis = 1>(x, x, x, x)
  t = Transpose(x)
  row = ReduceSum<keepdims = 0>(wide)
  u = Add(t, row)
  y = Add(u, sum)
}
"""


def test_the_order_search_counts_workspaces() -> None:
    # The widest tensor is the peak of every order, unless the Transpose has its workspace while the wide one lives.
    case = Case.of(AFTER_THE_WIDE_ONE)
    assert {case.plan(order=order).peak for order in ("model", "min-peak")} == {16_384 + 64}
    own, least = (case.plan(order=order, **rules(Transpose="14336")) for order in ("model", "min-peak"))
    assert (own.peak, least.peak) == (4096 + 64 + 1024 + 14_336, 16_384 + 64)
    assert case.run(least).equal
