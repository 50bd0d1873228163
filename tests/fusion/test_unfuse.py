"""What unfuse gives back is the original; what it cannot give back, it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion import record as packing
from onnxtile.fusion.pattern import from_query
from onnxtile.fusion.record import dumps, loads, packed, past_of, unpacked
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.system.errors import ModelError, UsageError
from tests.conftest import LIGHT

if TYPE_CHECKING:
    from tests.fusion.conftest import Fused, Lab

ZOO = (
    "bert_dy20",
    "bert-sdpa_dy20",
    "bert_ts14dyn",
    "clip_text_ts14",
    "dinov2_ts14_sim",
    "gpt2_ts14",
    "gpt2_dy20dyn",
    "llama_dy20",
    "qwen3_ts14_sim",
    "swin_ts14",
    "t5_encoder_dy20",
    "vit_ts14",
    "whisper_encoder_ts14_sim",
)
# Queries that match in many places of models that have no attention, also with several results and shared nodes.
EVERYWHERE = (
    from_query("Conv->.", "ConvAnd"),
    from_query(".#1->Relu~>.", "AroundRelu"),
    from_query("Mul~*>Add", "MulAdd"),
    from_query("Add~*>.", "AddAnd"),
    from_query(".<*~MatMul", "AfterMatMul"),
    from_query("Concat<*-.", "IntoConcat"),
)


def some(names: Iterable[str], large: Collection[str]) -> list[Any]:
    """Return the names as cases, of which the `large` are slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in large else ()) for name in names]


@pytest.mark.parametrize(
    "name", some(ZOO, {"bert_dy20", "bert_ts14dyn", "gpt2_ts14", "qwen3_ts14_sim", "swin_ts14", "vit_ts14"})
)
def test_zoo_models_come_back(lab: Lab, zoo: Callable[[str], Path], name: str) -> None:
    fused = lab.fuse(zoo(name), *lab.five, *EVERYWHERE, verify=False)
    assert sum(fused.counts) > 20
    lab.require_restored(fused)


@pytest.mark.parametrize("name", some(LIGHT, {"densenet121", "inception_v2"}))
def test_light_models_come_back(lab: Lab, light: Callable[[str], Path], name: str) -> None:
    fused = lab.fuse(light(name), *EVERYWHERE, verify=False)
    assert sum(fused.counts) > 5
    assert fused.original.ir_version == 3
    lab.require_restored(fused)


@pytest.mark.parametrize("name", ["ch_PP-OCRv4_det_infer", "ch_PP-OCRv4_rec_infer", "ch_ppocr_mobile_v2.0_cls_infer"])
def test_rapidocr_models_come_back(lab: Lab, rapidocr: Callable[[str], Path], name: str) -> None:
    fused = lab.fuse(rapidocr(name), *lab.five, *EVERYWHERE, verify=False)
    assert sum(fused.counts) > 20
    lab.require_restored(fused)


def test_a_model_with_bodies_comes_back(lab: Lab, silero: Callable[[str], Path]) -> None:
    fused = lab.fuse(silero("silero_vad"), *lab.five, *EVERYWHERE, verify=False)
    assert sum(fused.counts) > 10
    assert any(
        node.domain == keys.DOMAIN and node.graph is not fused.model.graph for node in fused.model.graph.all_nodes()
    )
    lab.require_restored(fused)


def test_two_runs_are_undone_one_after_the_other(lab: Lab, transformer: Path, tmp_path: Path) -> None:
    path = transformer
    for pattern in lab.five:
        result = api.fuse(path, [pattern], verify=False)
        path = tmp_path / f"{pattern.name}.onnx"
        api.save(result.model, path)
    lab.require_same_bits(load(transformer), load(path))
    lab.require_same_meaning(load(transformer), api.unfuse(path).model)


@pytest.mark.parametrize("name", some(("swin_ts14", "dinov2_ts14_sim"), {"swin_ts14"}))
def test_many_wild_runs_are_undone(lab: Lab, zoo: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    path = zoo(name)
    for i, pattern in enumerate(EVERYWHERE):
        result = api.fuse(path, [pattern], verify=False)
        path = tmp_path / f"{i}.onnx"
        api.save(result.model, path)
    lab.require_same_meaning(load(zoo(name)), api.unfuse(path, verify=False).model)


def test_unfuse_and_fuse_give_the_same_bytes(lab: Lab, zoo: Callable[[str], Path]) -> None:
    fused = lab.fuse(zoo("bert_ts14"), *lab.five, verify=False)
    restored = lab.require_restored(fused)
    assert to_bytes(lab.fuse(restored, *lab.five, verify=False).model) == to_bytes(fused.model)


GRAPH = """g (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) {
    h = MatMul(x, w)  i = Add(h, b)  y = Relu(i) }"""


@pytest.fixture(name="small")
def _small(lab: Lab) -> Fused:
    return lab.fuse(lab.text(GRAPH), lab.linear)


def test_there_is_nothing_to_undo(lab: Lab) -> None:
    with pytest.raises(UsageError, match="not fused"):
        api.unfuse(lab.text(GRAPH))


def test_a_second_time_there_is_nothing_to_undo(small: Fused) -> None:
    with pytest.raises(UsageError, match="not fused"):
        api.unfuse(api.unfuse(small.model).model)


NODES = '[{"outputs": [{"name": "h"}]}, {"outputs": [{"name": "i"}]}]'
RUNS = '[{"run": 1, "domain": false, "ir_version": 10}]'


def past(records: str = "[]", history: str = RUNS) -> str:
    return packed(f'{{"history": {history}, "records": {records}}}'.encode())


@pytest.mark.parametrize(
    "record",
    ["", "{", "7", "{}", '{"run": 1}', '{"run": 1, "nodes": []}', '{"run": 1, "body": "", "nodes": [1]}',
     '{"run": "x", "body": "", "nodes": []}', "null", f'{{"run": 1, "body": "", "nodes": {NODES}}}',
     NODES.replace('"i"', '"i", "dtype": 99'), NODES.replace('"outputs": [{"name": "i', '"place": "x", "outputs": [{"name": "i'),
     NODES.replace('"i"', '"i", "dims": [{}]')],
)  # fmt: skip
def test_a_damaged_record_is_refused(small: Fused, record: str) -> None:
    text = f'{{"run": 1, "body": "", "nodes": {record}}}' if record.startswith("[{") else record
    small.model.graph.metadata_props[keys.ORIGINAL] = past(f"[{text}]")
    with pytest.raises(ModelError, match=r"record|changed since"):
        api.unfuse(small.model)


@pytest.mark.parametrize("text", ["", "x", "-1", "1", "0.5", "\u00b2", "9" * 5000])
def test_a_number_of_no_record_is_refused(small: Fused, text: str) -> None:
    small.node("Linear").metadata_props[keys.FUSED] = text
    with pytest.raises(ModelError, match="'i/Linear'"):
        api.unfuse(small.model)


def test_a_call_inside_itself_is_refused(small: Fused) -> None:
    metadata = f'"metadata": {{"{keys.FUSED}": "0"}}'
    record = f'{{"run": 1, "body": "", "nodes": [{{"outputs": [{{"name": "i"}}], {metadata}}}]}}'
    small.model.graph.metadata_props[keys.ORIGINAL] = past(f"[{record}]")
    with pytest.raises(ModelError, match="inside itself"):
        api.unfuse(small.model)
    with pytest.raises(ModelError, match="record"):
        api.fuse(small.model)


@pytest.mark.parametrize("text", ["", "x", "-1", "99", "9" * 5000])
@pytest.mark.parametrize("lower", ["none", "qdq"])
def test_a_call_without_a_record_is_not_fused_again(lab: Lab, text: str, lower: str) -> None:
    model = load(lab.text(GRAPH))
    next(iter(model.graph)).metadata_props[keys.FUSED] = text
    with pytest.raises(ModelError, match="record"):
        api.fuse(model, lower=lower)


def test_a_lost_record_is_refused(small: Fused) -> None:
    del small.node("Linear").metadata_props[keys.FUSED]
    with pytest.raises(ModelError, match="Linear"):
        api.unfuse(small.model)


@pytest.mark.parametrize(
    "history",
    ["", "{", "7", "{}", "[1]", "[{}]", '[{"run": 1}]', '[{"run": 1, "domain": false}]',
     '[{"run": 1, "domain": false, "ir_version": "x"}]', '[{"run": 1, "domain": false, "ir_version": 10, "inputs": ["z"]}]'],
)  # fmt: skip
def test_a_damaged_history_is_refused(small: Fused, history: str) -> None:
    kept = unpacked(small.model.graph.metadata_props[keys.ORIGINAL]).decode()
    records = kept[kept.index('"records":') + len('"records":') : -1]
    small.model.graph.metadata_props[keys.ORIGINAL] = past(records, history)
    with pytest.raises(ModelError, match="record"):
        api.unfuse(small.model)


@pytest.mark.parametrize(("stop", "behind"), [(0, ""), (-5, ""), (None, "00000"), (0, "{}"), (0, "\u20ac")])
def test_a_damaged_text_is_refused(small: Fused, stop: int | None, behind: str) -> None:
    marks = small.model.graph.metadata_props
    marks[keys.ORIGINAL] = marks[keys.ORIGINAL][:stop] + behind
    with pytest.raises(ModelError, match="record"):
        api.unfuse(small.model)
    with pytest.raises(ModelError, match="record"):
        api.fuse(small.model, ["Relu;"])


def test_a_text_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_MOST_BYTES", 10**6)
    assert unpacked(packed(b" " * 10**6)) == b" " * 10**6
    with pytest.raises(ValueError, match="too long"):
        unpacked(packed(b" " * 10**7))


def test_records_of_calls_that_are_gone_are_left_out(lab: Lab) -> None:
    two = GRAPH.replace("y = Relu(i)", "j = Relu(i) k = MatMul(j, w) y = Add(k, b)")
    fused = lab.fuse(lab.text(two), lab.linear, from_query("Linear->Relu", "Layer"))
    layer, linear = fused.node("Layer"), fused.node("Linear")
    kept = past_of(fused.model)
    assert all(kept.records) and len(kept.records) == 3
    for call, count in ((layer, 2), (linear, 1)):
        only = loads(dumps(kept.only([call])))
        assert only.record(call) == kept.record(call)
        assert len([record for record in only.records if record]) == count
    with pytest.raises(ValueError, match="no record"):
        kept.only([linear]).record(layer)


def test_the_record_is_small(lab: Lab, transformer: Path) -> None:
    """All that unfuse needs takes fewer bytes than the names of the nodes that were fused, twice."""
    original = load(transformer)
    fused = lab.fuse(transformer, *lab.five, verify=False).model
    record = fused.graph.metadata_props[keys.ORIGINAL]
    names = sum(len(node.name or "") + sum(len(value.name or "") for value in node.outputs) for node in original.graph)
    assert len(record) < names / 2
    marks = [node.metadata_props[keys.FUSED] for node in fused.graph if keys.FUSED in node.metadata_props]
    assert max(map(len, marks)) <= 3
    packed_again = packed(unpacked(record))
    assert packed_again == record


@pytest.mark.parametrize("text", ["x", "1", "1:", "1:x", ":1", "2:-1"])
def test_a_damaged_place_is_refused(small: Fused, text: str) -> None:
    small.node("Relu").metadata_props[keys.PLACE] = text
    with pytest.raises(ModelError, match="record"):
        api.unfuse(small.model)


def test_a_missing_function_is_refused(small: Fused) -> None:
    small.model.functions.clear()
    with pytest.raises(ModelError, match="missing"):
        api.unfuse(small.model)


def _body(fused: Fused) -> ir.Function:
    return next(iter(fused.model.functions.values()))


def _add_a_node(function: ir.Function) -> None:
    made = ir.Node("", "Relu", [function.outputs[0]], num_outputs=1, name="more")
    made.outputs[0].name = "more"
    function.append(made)
    function.outputs[0] = made.outputs[0]


def _swap_an_operator(function: ir.Function) -> None:
    list(function)[1].op_type = "Sub"


def _swap_the_inputs(function: ir.Function) -> None:
    node = list(function)[1]
    first, second = node.inputs
    node.replace_input_with(0, second)
    node.replace_input_with(1, first)


def _give_another_result(function: ir.Function) -> None:
    function.outputs[0] = next(iter(function)).outputs[0]


@pytest.mark.parametrize("change", [_add_a_node, _swap_an_operator, _swap_the_inputs, _give_another_result])
def test_a_changed_function_is_refused(small: Fused, change: Callable[[ir.Function], None]) -> None:
    change(_body(small))
    with pytest.raises(ModelError, match=r"'i/Linear' was changed"):
        api.unfuse(small.model, verify=False)


def test_a_changed_constant_is_refused(lab: Lab) -> None:
    fused = lab.fuse(
        lab.text("g (float[2] x) => (float[2] y) <float c = {3.0}> { h = Mul(x, c)  y = Exp(h) }"), "Mul->Exp"
    )
    assert fused.ops == ["MetaOp"]
    constant = next(iter(_body(fused)))
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor([2.0]))
    with pytest.raises(ModelError, match="was changed"):
        api.unfuse(fused.model, verify=False)


def test_functions_of_the_user_stay(lab: Lab) -> None:
    source = lab.text(
        "g (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) { h = MatMul(x, w) i = Add(h, b) y = local.twice(i) }",
        functions='<domain: "local", opset_import: ["": 17]> twice (a) => (c) { c = Add(a, a) }',
    )
    restored = api.unfuse(lab.sound(source, lab.linear).model).model
    assert [key[:2] for key in restored.functions] == [("local", "twice")]


def test_the_result_says_what_was_undone(small: Fused) -> None:
    result = api.unfuse(small.model)
    assert json.loads(json.dumps(result.to_dict()))["unfused"] == {"Linear": 1}
    assert result.verdict is not None and result.verdict.equal


def test_an_edited_model_still_unfuses_to_one_that_runs(lab: Lab, small: Fused) -> None:
    """Nodes that came in after fuse are kept, in an order that runs."""
    graph = small.model.graph
    call, relu = small.node("Linear"), small.node("Relu")
    negated = ir.Node("", "Neg", [call.outputs[0]], num_outputs=1, name="new")
    negated.outputs[0].name = "new"
    graph.insert_before(relu, negated)
    relu.replace_input_with(0, negated.outputs[0])
    restored = api.unfuse(small.model).model
    assert [node.op_type for node in restored.graph] == ["MatMul", "Add", "Neg", "Relu"]
    lab.require_same_bits(small.model, restored)
