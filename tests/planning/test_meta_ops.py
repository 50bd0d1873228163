"""Plans of fused models: a meta-op is one kernel, which writes over an operand where its pattern says so."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import jsonschema
import onnx.parser
import onnx_ir as ir
import pytest
from rich.console import Console

from onnxtile import api
from onnxtile.declare.plan_document import document_of
from onnxtile.kernels.aliases import overwritable
from onnxtile.model import keys
from onnxtile.model.topology import node_id
from onnxtile.planning.bodies import Insides
from onnxtile.planning.result import Inside, PlanResult
from onnxtile.planning.workspaces import WorkspaceRules
from onnxtile.report.plan_tables import for_plan
from onnxtile.system.errors import ModelError
from tests.build import Find
from tests.planning.conftest import Case, aliases, rows

SHORTCUT = """
shortcut (float[1,2,6,6] x, float[2,2,3,3] w, float[2,2,3,3] v) => (float[1,2,6,6] y) {
  s = Exp(x)
  h = Neg(x)
  a = Conv<pads = [1, 1, 1, 1]>(OPERAND, w)
  b = Add(a, s)
  y = Relu(b)
}
"""


def fused(text: str, *names: str) -> Case:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}')
    return Case.of(api.fuse(model, list(names)).model)


def test_a_residual_stream_stays_in_its_place(zoo: Find) -> None:
    """Were each sum written over the newer operand, the stream would wander, and leave holes too small for what comes next."""
    case = Case.of(
        "g (float[8] x) => (float[8] y) { r = Exp(x) a = Neg(r) s = Add(a, r) b = Sin(s) t = Add(b, s) y = Cos(t) }"
    )
    assert aliases(case.plan()).items() >= {"s": "r", "t": "r"}.items()
    result = Case.of(api.fuse(zoo("gpt2_dy20"), verify=False).model).plan(planner="best")
    assert (result.arena_size, result.optimal) == (result.lower_bound, True)


def test_a_fused_resnet_is_planned_below_what_onnxruntime_needs(light: Find) -> None:
    case = Case.of(api.fuse(light("resnet50"), verify=False).model)
    result = case.plan(planner="best")
    assert (result.arena_size, result.optimal, result.unplanned) == (5_218_304, True, ())
    assert case.run(result, runs=1).equal


def test_a_sum_is_written_over_its_shortcut() -> None:
    case = fused(SHORTCUT.replace("OPERAND", "h"), "ConvAddActivation")
    result = case.plan()
    assert aliases(result) == {"y": "s"}
    assert case.run(result, runs=9).equal


def test_what_the_convolution_reads_as_well_is_not_written_over() -> None:
    case = fused(SHORTCUT.replace("OPERAND", "s"), "ConvAddActivation")
    (call,) = (node for node in case.model.graph if node.op_type == "ConvAddActivation")
    assert not overwritable(call, case.facts)
    assert aliases(case.plan()) == {}


def test_a_view_of_the_shortcut_that_the_convolution_reads_is_not_written_over() -> None:
    text = SHORTCUT.replace("h = Neg(x)", "h = Identity(s)").replace("OPERAND", "h")
    case = fused(text, "ConvAddActivation")
    # The Identity changes nothing, so it is inside the meta-op, which reads the shortcut twice.
    assert aliases(case.plan()) == {}
    assert case.run(case.plan()).equal


def test_a_shortcut_that_is_read_later_is_not_written_over() -> None:
    text = SHORTCUT.replace("=> (", "=> (float[1,2,6,6] z, ").replace("y = Relu(b)", "y = Relu(b)\n  z = Tanh(s)")
    case = fused(text.replace("OPERAND", "h"), "ConvAddActivation")
    assert "y" not in aliases(case.plan())


def test_a_plan_that_writes_over_another_operand_is_refused() -> None:
    case = fused(SHORTCUT.replace("OPERAND", "h"), "ConvAddActivation")
    function = next(iter(case.model.functions.values()))
    assert function.metadata_props[keys.IN_PLACE] == "[2]"
    function.metadata_props[keys.IN_PLACE] = "[0]"
    result = case.plan()
    assert aliases(result) == {"y": "h"}
    function.metadata_props[keys.IN_PLACE] = "[2]"
    found = list(map(str, case.audit(result).failures))
    assert found[0] == "'y' in [320, 608) (ConvAddActivation) is no lawful alias of 'h' in [320, 608) (step 2)"


def test_activations_and_normalisations_are_computed_in_place() -> None:
    case = fused(
        """
        mlp (float[4,8] x) => (float[4,8] y) {
          root = Constant<value = float {1.4142135}>()
          one = Constant<value = float {1.0}>()
          half = Constant<value = float {0.5}>()
          a = Neg(x)
          b = Div(a, root)
          c = Erf(b)
          d = Add(c, one)
          e = Mul(a, half)
          f = Mul(e, d)
          y = Neg(f)
        }
        """,
        "GeLU",
    )
    result = case.plan()
    assert result.arena_size == rows(result)["y"].size
    assert case.run(result, runs=9).equal


ATTENTION = """
attention (float[1,2,8,4] q, float[1,2,8,4] k, float[1,2,8,4] v) => (float[1,2,8,4] y) {
  a = Neg(q)
  t = Transpose<perm = [0, 1, 3, 2]>(k)
  half = Constant<value = float {0.5}>()
  m = MatMul(a, t)
  s = Mul(m, half)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
  y = Neg(o)
}
"""


def test_the_report_says_what_the_inside_of_a_meta_op_would_need() -> None:
    case = fused(ATTENTION, "ScaledDotProductAttention")
    (call,) = (node for node in case.model.graph if node.domain == keys.DOMAIN)
    result = case.plan()
    size = 1 * 2 * 8 * 8 * 4  # the scores, of which each is written over the ones before
    assert result.insides == (Inside(node_id(call), "ScaledDotProductAttention", size, in_arena=False),)
    assert re.search(r"inside meta-ops\W+up to 512 bytes in 1 kernel \(not in the arena\)", shown(result))
    schema = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(document_of(result.to_dict()))), schema)
    for rule, expected in (("inside", size), ("2 * inside + 64", 2 * size + 64)):
        counted = case.plan(workspaces=WorkspaceRules.from_texts({"ScaledDotProductAttention": rule}, shared=False))
        assert [row.size for row in counted.buffers if row.kind == "workspace"] == [expected]
        assert counted.insides == (replace(result.insides[0], in_arena=True),)
        assert counted.arena_size == result.arena_size + expected
        assert "inside meta-ops" not in shown(counted)
        assert case.run(counted).equal


def shown(result: PlanResult) -> str:
    """Return the report of a plan as it stands on a terminal."""
    console = Console(width=200, record=True, file=StringIO())
    for part in for_plan(result.to_dict()):
        console.print(part)
    return console.export_text()


def test_a_pattern_may_count_the_inside_of_its_meta_op(tmp_path: Path) -> None:
    file = tmp_path / "soft.toml"
    file.write_text(
        'name = "Soft"\ndoc = "d"\nworkspace = "inside"\n[[variants]]\nquery = "Neg#1->Transpose->Softmax"\n'
    )
    case = fused("g (float[64] x) => (float[64] y) { a = Neg(x) b = Transpose(a) y = Softmax(b) }", str(file))
    result = case.plan()
    assert [row.size for row in result.buffers if row.kind == "workspace"] == [2 * 256]
    assert [(row.bytes, row.in_arena) for row in result.insides] == [(2 * 256, True)]


def test_the_inside_of_an_operator_that_is_no_meta_op_is_refused() -> None:
    case = fused(ATTENTION, "ScaledDotProductAttention")
    with pytest.raises(ModelError, match=r"the workspace 'inside' of the node .* it is not a meta-op"):
        case.plan(workspaces=WorkspaceRules.from_texts({"Neg": "inside"}, shared=False))


def test_calls_of_equal_sizes_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sigmoid(x) b = Mul(x, a) c = Sigmoid(b) y = Mul(b, c) }"
    case = fused(text, "SiLU")
    planned: list[ir.Node] = []
    plan = Insides._planned

    def noting(self: Insides, node: ir.Node) -> int | None:
        planned.append(node)
        return plan(self, node)

    monkeypatch.setattr(Insides, "_planned", noting)
    assert len(case.plan().insides) == 2
    assert len(planned) == 1
