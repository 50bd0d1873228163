"""Models with random operators: both models draw the same numbers, or the outputs that depend on them are not compared."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import onnxtile
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import RandomNodes
from onnxtile.model.session import repeatable_session
from onnxtile.operators.table import names_where
from onnxtile.system.errors import Mismatch
from onnxtile.verbs.flows.results import agreeing
from onnxtile.verification.draws import drawn_outputs, same_draws
from onnxtile.verification.rounding import compare, judge
from onnxtile.verification.trials import Verdict


def model(nodes: str, *, outputs: str = "float[4, 6] y", more: str = "", functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "own" : 1]>
      g (float[4, 6] x{more}) => ({outputs}) {{
        half = Constant <value_float = 0.5> ()
        yes = Constant <value = bool {{1}}> ()
        no = Constant <value = bool {{0}}> ()
        {nodes}
      }} {functions}""")


def graph(nodes: str, **more: str) -> ir.Model:
    return ir.from_proto(model(nodes, **more))


DRAWING = {
    "Dropout": "y = Dropout <{}> (x, half, yes)",
    "RandomNormalLike": "y = RandomNormalLike <{}> (x)",
    "RandomUniformLike": "y = RandomUniformLike <{}> (x)",
    "RandomNormal": "n = RandomNormal <shape = [4, 6] {}> () y = Add(x, n)",
    "RandomUniform": "n = RandomUniform <shape = [4, 6] {}> () y = Add(x, n)",
    "Bernoulli": "p = Sigmoid(x) y = Bernoulli <{}> (p)",
    "Multinomial": "p = Abs(x) m = Multinomial <sample_size = 6 {}> (p) y = Cast <to = 1> (m)",
}
SEEDED = {op: "seed = 7" if op == "Dropout" else "seed = 7.0" for op in DRAWING}


def written(op: str, *, seeded: bool, then: str = "") -> str:
    """Return the nodes of one random operator."""
    text = DRAWING[op]
    seed = (
        f"{',' if '{}' in text and '= ' in text.split('{}')[0].split('<')[-1] else ''} {SEEDED[op]}" if seeded else ""
    )
    return text.format(seed).replace("<>", "") + then


def test_no_random_operator_of_onnx_or_onnxruntime_is_left_out() -> None:
    schemas = [one for one in onnx.defs.get_all_schemas_with_history() if one.domain == ""]
    drawing = {
        one.name
        for one in schemas
        if "NonDeterministic" in str(one.node_determinism)  # type: ignore[attr-defined]
        and all(str(a.type).rpartition(".")[2] != "GRAPH" for a in one.attributes.values())
    }
    drawing -= {"AffineGrid"}  # its grid follows from its operands
    contributed = {
        (one.domain, one.name) for one in get_all_operator_schema() if one.domain != "" and "seed" in one.attributes
    } | {("com.microsoft", "Sampling")}
    contributed -= {("com.microsoft", "MurmurHash3")}  # a function of its operands
    contributed_names = {f"{domain}::{name}" for domain, name in contributed}
    assert drawing | contributed_names == names_where(lambda row: row.draws)


@pytest.mark.parametrize("op", DRAWING)
def test_a_seed_gives_the_same_numbers_in_each_run(op: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 6), np.float32)
    first, other = (repeatable_session(graph(written(op, seeded=True))) for _ in range(2))
    runs = [first.run({"x": x})["y"], first.run({"x": x})["y"], other.run({"x": x})["y"]]
    assert np.array_equal(runs[0], runs[1])
    assert np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("op", DRAWING)
def test_outputs_behind_random_operators_are_compared(op: str, seeded: bool) -> None:
    nodes = written(op, seeded=seeded)
    verdict = compare(graph(nodes), graph(nodes))
    assert verdict.equal
    assert not verdict.not_compared
    assert verdict.outputs[0].max_abs == 0
    assert ("the same seeds" in verdict.outputs[0].reason) == (not seeded)


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("op", DRAWING)
def test_a_fault_behind_a_random_operator_is_seen(op: str, seeded: bool) -> None:
    nodes = written(op, seeded=seeded).replace("y = ", "r = ")
    good, bad = graph(f"{nodes} y = Mul(r, x)"), graph(f"{nodes} z = Mul(r, x) y = Sub(z, half)")
    assert judge(good, good).equal
    assert not judge(good, bad).equal
    assert not compare(good, bad).equal


def test_a_dropout_with_a_seed_that_was_cut_is_a_difference() -> None:
    whole = model("y = Dropout <seed = 7> (x, half, yes)")
    cut = model("""two = Constant <value_ints = [2, 2]> () a, b = Split <axis = 0> (x, two)
        c = Dropout <seed = 7> (a, half, yes) d = Dropout <seed = 7> (b, half, yes) y = Concat <axis = 0> (c, d)""")
    assert not onnxtile.verify(whole, cut).equal
    assert not judge(ir.from_proto(whole), ir.from_proto(cut)).equal


def test_no_effect_of_rounding_is_measured_through_a_choice_by_size() -> None:
    """One unit in the last place of x decides what Bernoulli draws here, so that anything would be excused."""
    steps = "p = Mul(x, z) b = Bernoulli <seed = 7.0> (p) "
    good, bad = (
        graph(f"z = Constant <value_float = 0.0> () {steps} y = {last}") for last in ("Add(b, x)", "Sub(b, x)")
    )
    verdict = judge(good, bad)
    assert not verdict.equal
    assert "one unit in the last place" not in verdict.outputs[0].reason


@pytest.mark.parametrize("seed", ["<seed = 7>", ""])
def test_the_effect_of_rounding_is_measured_with_the_same_numbers(seed: str) -> None:
    """Rounding crosses a step before the Dropout, which doubles the step: no more is let pass."""
    nodes = f"""s = Constant <value_float = 0.125> () z = Constant <value = int8 {{{{3}}}}> () f = Constant <value_float = 1.01> ()
        p = {{}} q = QuantizeLinear(p, s, z) d = DequantizeLinear(q, s, z) e = Dropout {seed} (d, half, yes) y = {{}}"""
    written = [("Identity(x)", "Neg(e)"), ("Mul(x, f)", "Neg(e)"), ("Identity(x)", "Neg(d)")]
    texts = (onnx.printer.to_text(model(nodes.format(*how))).replace("[4,6]", "[64,64]") for how in written)
    original, near, far = (ir.from_proto(parser.parse_model(text)) for text in texts)
    assert not compare(original, near).equal
    verdict = judge(original, near)
    assert verdict.equal
    assert "quantised tensors one step apart" in verdict.outputs[0].reason
    assert not judge(original, far).equal


def test_random_operators_are_paired_by_name_or_by_order() -> None:
    one = graph("d = RandomNormalLike(x) e = RandomNormalLike(x) y = Sub(d, e)")
    renamed = graph("a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b)")
    reordered = graph("e = RandomNormalLike(x) d = RandomNormalLike(x) y = Sub(d, e)")
    assert compare(one, renamed).equal
    assert compare(one, reordered).equal
    assert not compare(one, graph("d = RandomNormalLike(x) e = RandomNormalLike(x) y = Sub(e, d)")).equal


FUNCTION = '<domain: "own", opset_import: ["" : 17]> twice (a) => (c) { b = RandomNormalLike(a) c = Add(a, b) }'


def test_a_function_that_is_called_twice_is_paired_with_what_is_written_out() -> None:
    called = graph("a = own.twice(x) y = own.twice(a)", functions=FUNCTION)
    inline = graph("n = RandomNormalLike(x) a = Add(x, n) m = RandomNormalLike(a) y = Add(a, m)")
    for pair in ((called, inline), (inline, called), (called, called)):
        verdict = compare(*pair)
        assert verdict.equal
        assert not verdict.not_compared


@pytest.mark.parametrize(
    "nodes",
    [
        """y = If(c) <then_branch = t () => (float[4, 6] p) { p = RandomNormalLike(x) },
                      else_branch = e () => (float[4, 6] q) { q = Neg(x) }>""",
        """n = Constant <value_int = 3> ()
        y = Loop(n, c, x) <body = b (int64 i, bool on, float[4, 6] v) => (bool go, float[4, 6] w) {
            go = Identity(on) w = Dropout(v, half, yes) }>""",
    ],
)
def test_bodies_are_compared(nodes: str) -> None:
    found = compare(graph(nodes, more=", bool c"), graph(nodes, more=", bool c"))
    assert found.equal
    assert not found.not_compared
    assert not compare(
        graph(nodes, more=", bool c"),
        graph(nodes.replace("y = If", "z = If").replace("y = Loop", "z = Loop") + " y = Neg(z)", more=", bool c"),
    ).equal


def test_outputs_that_depend_on_other_random_operators_are_named_and_not_compared() -> None:
    outputs = "float[4, 6] y, float[4, 6] z"
    one = graph("d = RandomNormalLike(x) y = Add(d, x) z = Neg(x)", outputs=outputs)
    other = graph(
        "d = RandomNormalLike(x) e = RandomNormalLike(x) s = Add(d, e) y = Add(s, x) z = Neg(x)", outputs=outputs
    )
    verdict = compare(one, other)
    assert verdict.equal
    assert [output.name for output in verdict.outputs] == ["z"]
    assert verdict.not_compared == {
        "y": "it follows from 'e', which draws random numbers, and not the same ones in both models"
    }
    assert "1 outputs not compared" in verdict.summary
    assert verdict.to_dict()["not_compared"].keys() == {"y"}
    assert not compare(
        one, graph("d = RandomNormalLike(x) e = RandomUniformLike(d) y = Add(e, x) z = Abs(x)", outputs=outputs)
    ).equal


def test_a_verdict_on_no_output_is_no_yes() -> None:
    verdict = compare(graph("y = RandomNormalLike(x)"), graph("y = RandomUniformLike(x)"))
    assert verdict.is_empty
    assert not verdict.equal
    with pytest.raises(Mismatch, match="no output of the model could be compared: 'y'"):
        agreeing(verdict, "the model")
    assert agreeing(Verdict((), 1), "a model without outputs").equal


def test_a_dropout_draws_only_where_it_may_train() -> None:
    cases = {
        "y = Dropout(x, half, yes)": True,
        "y = Dropout(x, half, no)": False,
        "y = Dropout(x, half)": False,
        "y = Dropout(x, half, c)": True,
        "y = com.microsoft.BiasDropout(x, x, , half, yes)": True,
        "y = com.microsoft.BiasDropout(x, x, , half)": False,
    }
    for nodes, is_drawn in cases.items():
        one = graph(nodes, more=", bool c")
        random = RandomNodes(one, Constants(one))
        assert (one.graph.outputs[0].producer() in random) == is_drawn, nodes
        assert bool(drawn_outputs(one)) == is_drawn
    old = helper.make_model(
        helper.make_graph([helper.make_node("Dropout", ["x"], ["y"], is_test=1)], "g", [], []),
        opset_imports=[helper.make_opsetid("", 6)],
    )
    assert not drawn_outputs(ir.from_proto(old))


def test_models_without_random_operators_stay_as_they_are() -> None:
    one, other = graph("y = Dropout(x, half)"), graph("y = Neg(x)")
    plain = graph("y = Neg(x)")
    assert same_draws(plain, other).first is plain
    assert same_draws(one, other).apart == {}
