"""Certificates of graphs with bodies and with parts of tensors: their bytes are proved, and forged bodies are refused."""

from __future__ import annotations

import json
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

import onnxtile
from onnxtile.check import check_account, check_bound

IF = """
<ir_version: 10, opset_import: ["" : 17]>
g (bool c, float[4, 64] x) => (float[4, 64] y) {
    z = Relu(x)
    y = If (c) <
        then_branch = yes () => (float[4, 64] yes_y) { a = Softmax(z) b = Transpose(a) d = Transpose(b) yes_y = Mul(d, a) },
        else_branch = no () => (float[4, 64] no_y) { no_y = Relu(z) }
    >
}
"""
"""The widest node is `yes_y`: a, d or its result, beside z and y, which the If needs."""

LOOP = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 64] x) => (float[4, 64] y) {
    count = Constant <value = int64 {3}> ()
    true = Constant <value = bool {1}> ()
    y = Loop (count, true, x) <
        body = one (int64 number, bool go, float[4, 64] before) => (bool on, float[4, 64] after) {
            on = Identity(go) t = Transpose(before) u = Transpose(t) after = Mul(u, before)
        }
    >
}
"""

SCAN = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 64] sums, float[8, 4, 64] rows) => (float[4, 64] y, float[8, 4, 64] all) {
    y, all = Scan <num_scan_inputs = 1, body = one (float[4, 64] before, float[4, 64] row) => (float[4, 64] after, float[4, 64] made) {
        t = Transpose(row) u = Transpose(t) after = Add(u, before) made = Mul(row, before)
    }> (sums, rows)
}
"""

FUNCTION = """
<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
g (float[4, 64] x) => (float[4, 64] y) {
    z = Relu(x)
    y = own.Twice(z)
}
<domain: "own", opset_import: ["" : 17]>
Twice (x) => (y) { a = Transpose(x) b = Transpose(a) c = Sigmoid(b) d = Transpose(c) e = Transpose(d) y = Add(e, c) }
"""

NESTED = """
<ir_version: 10, opset_import: ["" : 17]>
g (bool c, float[4, 64] x) => (float[4, 64] y) {
    count = Constant <value = int64 {3}> ()
    y = If (c) <
        then_branch = yes () => (float[4, 64] yes_y) {
            true = Constant <value = bool {1}> ()
            a = Relu(x)
            yes_y = Loop (count, true, a) <
                body = one (int64 number, bool go, float[4, 64] before) => (bool on, float[4, 64] after) {
                    on = Identity(go) t = Transpose(before) u = Transpose(t) after = Mul(u, before)
                }
            >
        },
        else_branch = no () => (float[4, 64] no_y) { no_y = Relu(x) }
    >
}
"""

SLICES = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 64] x) => (float[1, 64] y, float[64, 4] t) {
    a = Relu(x)
    b = Slice (a, zero, one)
    c = Slice (a, last, four)
    t = Transpose(a)
    d = Sin(b)
    y = Add(d, c)
}
"""
"""While t is made, all of a lives; after it, only its first and its last row."""


def _model(text: str) -> onnx.ModelProto:
    model = parser.parse_model(text)
    numbers = {"zero": [0], "one": [1], "last": [-1], "four": [4]} if "Slice" in text else {}
    for name, data in numbers.items():
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], data))
    return model


def _planned(text: str, **options: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the planned model, and its certificate as it is read from a file."""
    result = onnxtile.plan(_model(text), verify=False, **options)
    return ir.to_proto(result.model), json.loads(json.dumps(result.certificate()))


def _refusal(model: onnx.ModelProto, said: dict[str, Any]) -> str:
    """Return the reason of a refusal; "" where both scripts accept."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        reason = check_account.refusal(check_account.graph_of(copy, said), said)
        return reason or ("" if check_bound.is_proved(said) else "the proof does not hold")
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("text", [IF, LOOP, SCAN, FUNCTION, NESTED, SLICES])
@pytest.mark.parametrize("options", [{}, {"io": "inside"}, {"order": "model"}, {"alignment": 16}])
def test_the_scripts_accept_what_plan_claims(text: str, options: dict[str, Any]) -> None:
    model, said = _planned(text, **options)
    assert said["claim"] is not None
    assert said["proof"] is not None, said["reason"]
    assert _refusal(model, said) == ""
    assert bool(said["bodies"]) == (text is not SLICES)


@pytest.mark.parametrize("text", [IF, LOOP, SCAN, FUNCTION, NESTED])
def test_a_forged_body_is_refused(text: str) -> None:
    model, said = _planned(text)
    body = said["bodies"][0]
    widest = max(range(len(said["account"]["nodes"])), key=lambda at: said["account"]["nodes"][at]["workspace"])

    def forged(**changes: Any) -> str:
        account = json.loads(json.dumps(said["account"]))
        account["nodes"][widest]["workspace"] += changes.get("arena", body["arena"]) - body["arena"]
        rest = said["bodies"][1:]
        return _refusal(model, said | {"account": account, "bodies": [body | changes, *rest]})

    assert forged() == ""
    assert forged(arena=body["arena"] + 64) == "the proof does not hold"
    assert forged(arena=body["arena"] + 64, alignment=512) != ""
    assert "in every order" in forged(scope="this order", claim="order")
    assert "nodes" in forged(workspaces={body["order"][0]: 64})
    grown = json.loads(json.dumps(body["account"]))
    grown["bytes"] = {name: size + 64 for name, size in grown["bytes"].items()}
    assert "are not those of the model" in forged(account=grown, arena=body["arena"] + 64)
    assert "each node once" in forged(order=body["order"][1:])
    assert _refusal(model, said | {"bodies": [body | {"node": "none"}]}) == "no step of the plan makes none"
    if body["attribute"] is not None:
        assert "has no body 'none'" in _refusal(model, said | {"bodies": [body | {"attribute": "none"}]})
    assert _refusal(model, said | {"bodies": []}) != ""
    assert _refusal(model, said | {"bodies": said["bodies"][1:] + said["bodies"][:1]}) == ""


def test_a_meta_op_has_no_body_of_which_bytes_are_proved() -> None:
    """A meta-op runs as one kernel, with the workspace that its pattern says."""
    text = FUNCTION.replace("own", "onnxtile")
    _, said = _planned(FUNCTION)
    model = _model(text)
    model.functions[0].metadata_props.append(onnx.StringStringEntryProto(key="pkg.onnxtile.meta_op", value="Twice"))
    assert "y runs as one kernel" in _refusal(model, said)


def test_a_slice_of_unknown_start_counts_nothing() -> None:
    """Where the start of a part is not known, the script proves fewer bytes, never more."""
    model, said = _planned(SLICES)
    graph = check_account.graph_of(model, said)
    assert graph.size == {"a[0:256]": 256, "a[256:768]": 512, "a[768:1024]": 256, "d": 256, "t": 1024, "y": 256}
    for tensor in list(model.graph.initializer):
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.INT64, [1]))
    assert {name for name in check_account.graph_of(model, said).size if name.startswith("a")} == {"a"}


OUTSIDE = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) {
    y = Relu(x)
    v = Identity(x)
    z = Identity(v)
}
"""


def test_an_output_that_is_a_view_of_an_input_has_bytes_of_its_own() -> None:
    model, said = _planned(OUTSIDE)
    assert (said["arena"], said["claim"], _refusal(model, said)) == (2048, "any order", "")
    assert check_account.graph_of(model, said).size == {"y": 1024, "z": 1024}
    inside, said = _planned(OUTSIDE, io="inside")
    assert (said["arena"], _refusal(inside, said)) == (2048, "")


def test_a_body_that_reads_only_constants_runs_in_the_arena() -> None:
    text = LOOP.replace("before)\n        }\n    >", "before)\n        }\n    >\n    z = Add(x, y)")
    text = text.replace("g (float[4, 64] x) => (float[4, 64] y)", "g (float[4, 64] x) => (float[4, 64] z)")
    model = parser.parse_model(text.replace("(count, true, x)", "(count, true, w)"))
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4, 64], [0.5] * 256))
    planned = onnxtile.plan(model, verify=False)
    said = json.loads(json.dumps(planned.certificate()))
    assert [body["node"] for body in said["bodies"]] == ["y"]
    assert said["proof"] is not None
    assert _refusal(ir.to_proto(planned.model), said) == ""


ORDERED = """
<ir_version: 10, opset_import: ["" : 17]>
g (bool c, float[64, 64] x) => (float[1, 64] y) {
    y = If (c) <
        then_branch = yes () => (float[1, 64] yes_y) {
            a = MatMul(x, x) d = MatMul(x, x) b = MatMul(a, a) e = MatMul(d, d)
            f = ReduceMean <axes = [0], keepdims = 1> (b) h = ReduceMean <axes = [0], keepdims = 1> (e)
            i = Concat <axis = 0> (f, h) yes_y = ReduceMean <axes = [0], keepdims = 1> (i)
        },
        else_branch = no () => (float[1, 64] no_y) { no_y = ReduceMean <axes = [0], keepdims = 1> (x) }
    >
}
"""


def test_a_body_in_a_larger_order_is_proved_up_to_the_fewest_bytes_of_all_orders() -> None:
    """The order of the file needs three matrices at once; a better one two, and the row of the branch that ran first."""
    model, said = _planned(ORDERED, order="model")
    (body,) = (one for one in said["bodies"] if one["attribute"] == "then_branch")
    assert body["arena"] == 2 * 64 * 64 * 4 + 64 * 4
    assert check_bound.is_proved(body)
    assert not check_bound.is_proved(body | {"arena": body["arena"] + 64})
    inside = check_account.body_of(check_account.graph_of(model, said), said, body)
    assert check_account.refusal(inside, body) == ""


# The certificate of a plan whose arena has no bytes.


MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8] x) => (float[8] y) { y = Relu(x) }"""


def test_a_plan_without_bytes_has_a_certificate_without_a_proof() -> None:
    said = onnxtile.plan(onnx.parser.parse_model(MODEL), io="outside", verify=False).certificate()
    assert (said["arena"], said["proof"]) == (0, None)
    assert said["reason"] == "the arena has no bytes, so no plan has fewer"
