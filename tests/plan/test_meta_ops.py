"""Plans of fused models: a meta-op is one kernel, which writes over an operand where its pattern says so."""

from collections.abc import Callable
from pathlib import Path

import onnx.parser

from onnxtile import api, keys
from onnxtile.plan.alias.find import overwritable
from tests.plan.conftest import Case, aliases, rows

Find = Callable[[str], Path]

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
    assert case.run(result, repeats=1).equal


def test_a_sum_is_written_over_its_shortcut() -> None:
    case = fused(SHORTCUT.replace("OPERAND", "h"), "ConvAddActivation")
    result = case.plan()
    assert aliases(result) == {"y": "s"}
    assert case.run(result, repeats=9).equal


def test_what_the_convolution_reads_as_well_is_not_written_over() -> None:
    case = fused(SHORTCUT.replace("OPERAND", "s"), "ConvAddActivation")
    (call,) = (node for node in case.model.graph if node.op_type == "ConvAddActivation")
    assert not overwritable(call, case.facts)
    assert aliases(case.plan()) == {}


def test_a_view_of_the_shortcut_that_the_convolution_reads_is_not_written_over() -> None:
    text = SHORTCUT.replace("h = Neg(x)", "h = Identity(s)").replace("OPERAND", "h")
    case = fused(text, "ConvAddActivation")
    result = case.plan()
    assert aliases(result) == {"h": "s"}
    assert case.run(result).equal


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
    assert case.run(result, repeats=9).equal
