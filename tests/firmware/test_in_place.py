"""Kernels in C that read what they have overwritten are found by running each alone, and get copies of their operands."""

from __future__ import annotations

from dataclasses import replace

import onnx.parser
import pytest

import onnxtile
from onnxtile.verbs.flows.results import PlannedModel

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware.build import HERE, build, checked
from onnxtile.firmware.program import WORKSPACE, CopyCall, CProgram, KernelCall, flat
from onnxtile.firmware.prove import Tools, compared, output_of, runs_of
from onnxtile.firmware.steps import program_of
from onnxtile.firmware.write import written
from onnxtile.model.feeds import ANYTHING
from tests.firmware.test_program import needs_cc, opened_of

MAX = "float[4, 6] c", "m = Max(c, c, a)"
"""Its function in C writes the first operand into the result before it reads the last, which the result is written over."""


def planned(*cases: tuple[str, str], body: str = "{}") -> PlannedModel:
    inputs, statements = zip(*cases, strict=True)
    text = f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[4, 6] x, {", ".join(inputs)}) => (float[4, 6] y) {{ a = Neg(x) {" ".join(statements)} {body} y = Abs(m) }}"""
    return onnxtile.plan(onnx.parser.parse_model(text.replace("{}", "")), verify=False, io="outside")


def tools() -> Tools:
    found = HERE.tools()
    assert found is not None
    return found


def program(model: PlannedModel) -> CProgram:
    return program_of(opened_of(model), model.plan)


@needs_cc
def test_a_kernel_that_reads_what_it_wrote_gets_a_copy_and_is_counted() -> None:
    model = planned(MAX)
    made = build(opened_of(model), model.plan)
    assert made.proof.equal and made.copied == {"Max": 1} and made.source.workspace >= 96
    assert made.to_dict()["copied"] == {"Max": 1}


@needs_cc
def test_without_the_copy_the_program_computes_something_else() -> None:
    model = planned(MAX)
    source, runs = written(program(model), "net"), list(runs_of(opened_of(model), model.plan, ANYTHING, 1))
    assert not compared(source, runs, output_of(source, runs, tools()), tools()).equal


SAFE = {
    "Softmax": ("float[6] w", "m = Softmax <axis = 0> (a)"),
    "LayerNormalization": ("float[6] w", "m = LayerNormalization(a, w)"),
    "MeanVarianceNormalization": ("float[6] w", "m = MeanVarianceNormalization <axes = [1]> (a)"),
    "Gemm": ("float[4, 3] p, float[3, 6] q", "m = Gemm(p, q, a)"),
    "ScatterElements": ("int64[4, 3] i, float[4, 3] u", "m = ScatterElements <axis = 1> (a, i, u)"),
    "Max": ("float[4, 6] c", "m = Max(a, c, c)"),
}


@needs_cc
@pytest.mark.parametrize("operator", SAFE)
def test_kernels_that_are_the_same_in_place_stay_there(operator: str) -> None:
    whole = program(planned(SAFE[operator]))
    assert any(
        call.addresses["o0"] in [address for name, address in call.addresses.items() if name != "o0"]
        for call in flat(whole.calls)
        if isinstance(call, KernelCall) and call.kernel.op_type == operator
    )
    assert checked(whole, tools()) == (whole, {})


@needs_cc
def test_kernels_in_branches_and_turns_get_copies_too() -> None:
    inputs = "float[4, 6] c, bool b"
    turn = "body = t (int64 i, bool d, float[4, 6] v) => (bool e, float[4, 6] w) { e = Identity(d) n = Neg(v) w = Max(c, c, n) }"
    body = f"""n = Loop(turns, , a) <{turn}>
        m = If(b) <then_branch = f () => (float[4, 6] p) {{ q = Exp(n) p = Max(c, c, q) }},
                   else_branch = h () => (float[4, 6] r) {{ r = Abs(n) }}>"""
    model = planned((inputs, "turns = Constant <value_int = 2> ()" + body))
    made = build(opened_of(model), model.plan)
    assert made.proof.equal and made.copied == {"Max": 2}
    copies = [call for call in flat(checked(program(model), tools())[0].calls) if isinstance(call, CopyCall)]
    assert sum(copy.target.kind == WORKSPACE and copy.size == 96 for copy in copies) >= 2


@needs_cc
def test_a_result_in_the_midst_of_an_operand_is_noticed() -> None:
    whole = program(planned(SAFE["Softmax"]))
    kernel = next(
        call for call in flat(whole.calls) if isinstance(call, KernelCall) and call.kernel.op_type == "Softmax"
    )
    moved = replace(kernel, addresses={**kernel.addresses, "o0": kernel.addresses["i0"].at(8)})
    _, copied = checked(replace(whole, calls=(moved,), results=()), tools())
    assert copied == {"Softmax": 1}
