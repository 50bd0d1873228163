"""Quantised islands: found around operators, shared DequantizeLinear nodes copied, and given back by unfuse."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import pattern_set
from onnxtile.fusion.unfuse import unfuse
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.system.runtime import Array, Session
from tests import build


class _Quantised:
    """A graph of float operators with QuantizeLinear and DequantizeLinear nodes around them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def held(self, name: str, array: Array) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def pair(self, name: str, scale: float = 0.05, zero: int = 3) -> tuple[str, str]:
        return self.held(f"{name}_s", np.asarray(scale, np.float32)), self.held(f"{name}_z", np.asarray(zero, np.int8))

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"n_{output}", **attributes))
        return output

    def q(self, value: str, scale: float = 0.05) -> str:
        return self.add("QuantizeLinear", [value, *self.pair(f"{value}_q", scale)], f"{value}_q")

    def dq(self, value: str, scale: float = 0.05) -> str:
        return self.add("DequantizeLinear", [value, *self.pair(f"{value}_d", scale)], f"{value}_d")

    def weight(self, name: str, *shape: int) -> str:
        numbers = np.random.default_rng(len(name)).integers(-9, 9, shape).astype(np.int8)
        return self.add(
            "DequantizeLinear", [self.held(f"{name}_w", numbers), *self.pair(f"{name}_w", 0.1, 0)], f"{name}_d"
        )

    def model(self, output: str, shape: list[int]) -> onnx.ModelProto:
        return build.model(self.nodes, {"x": [1, 4, 8, 8]}, {output: shape}, self.initializers)


def _residual() -> onnx.ModelProto:
    """Return x -> Conv, Relu -> Conv -> Add of both, whose DequantizeLinear has two readers -> GlobalAveragePool -> Flatten."""
    net = _Quantised()
    x = net.dq(net.q("x"))
    first = net.add("Conv", [x, net.weight("a", 4, 4, 3, 3)], "conv1", pads=[1, 1, 1, 1])
    shared = net.dq(net.q(net.add("Relu", [first], "relu")))
    second = net.add("Conv", [shared, net.weight("b", 4, 4, 3, 3)], "conv2", pads=[1, 1, 1, 1])
    total = net.dq(net.q(net.add("Add", [net.dq(net.q(second)), shared], "sum")))
    pooled = net.dq(net.q(net.add("GlobalAveragePool", [total], "pool")))
    return net.model(net.dq(net.q(net.add("Flatten", [pooled], "flat"))), [1, 4])


def _islands(proto: onnx.ModelProto) -> ir.Model:
    model = load(proto)
    fuse(model, pattern_set("quantised"))
    return model


def test_every_operator_becomes_an_island() -> None:
    model = _islands(_residual())
    assert Counter(keys.meta_op(node.op_type) for node in model.graph) == {
        "QuantizeLinear": 1,
        "QConvRelu": 1,
        "QConv": 1,
        "QAdd": 1,
        "QGlobalAveragePool": 1,
        "QFlattenView": 1,
        "DequantizeLinear": 1,
    }


@pytest.mark.parametrize("held", ["SequenceConstruct", "Optional"])
def test_what_is_no_tensor_is_in_no_island(held: str) -> None:
    net = _Quantised()
    kept = net.add(held, [net.dq(net.q("x"))], "kept")
    at = [net.held("first", np.asarray(0))] if held == "SequenceConstruct" else []
    taken = net.add("SequenceAt" if at else "OptionalGetElement", [kept, *at], "taken")
    net.dq(net.q(taken))
    model = api.fuse(net.model("taken_q_d", [1, 4, 8, 8]), "quantised").model
    assert not model.functions


def test_ports_are_quantised_and_scales_are_operands() -> None:
    model = _islands(_residual())
    call = next(node for node in model.graph if node.op_type == "QConvRelu")
    assert [value.name for value in call.inputs if value is not None] == [
        "x_q", "x_q_d_s", "x_q_d_z", "a_w", "a_w_s", "a_w_z", "relu_q_s", "relu_q_z",
    ]  # fmt: skip
    assert [value.name for value in call.outputs] == ["relu_q"]


def test_a_shared_dequantiser_is_in_both_islands_and_once_in_the_file_again() -> None:
    proto = _residual()
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    model = _islands(proto)
    readers = [node.op_type for node in model.graph if any(v is not None and v.name == "relu_q" for v in node.inputs)]
    assert sorted(readers) == ["QAdd", "QConv"]
    unfuse(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_outputs_stay_equal_bit_for_bit() -> None:
    proto = _residual()
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    plain = Session(proto.SerializeToString()).run(feeds)
    fused = Session(ir.to_proto(_islands(proto)).SerializeToString()).run(feeds)
    assert plain.keys() == fused.keys()
    assert all(np.array_equal(plain[name], fused[name]) for name in plain)


def test_a_dequantiser_that_an_output_reads_stays() -> None:
    net = _Quantised()
    seen = net.dq(net.q("x"))
    net.dq(net.q(net.add("Sigmoid", [seen], "gate")))
    proto = net.model("gate_q_d", [1, 4, 8, 8])
    proto.graph.output.append(helper.make_tensor_value_info(seen, TensorProto.FLOAT, [1, 4, 8, 8]))
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    model = _islands(proto)
    assert [node.op_type for node in model.graph].count("DequantizeLinear") == 2
    unfuse(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("scale", "expected"), [(0.05, "QReshapeView"), (0.06, "QReshape")])
def test_a_reshape_is_a_view_between_equal_scales_only(scale: float, expected: str) -> None:
    net = _Quantised()
    net.held("shape", np.asarray([4, 64], np.int64))
    net.dq(net.q(net.add("Reshape", [net.dq(net.q("x")), "shape"], "flat"), scale))
    model = _islands(net.model("flat_q_d", [4, 64]))
    assert [node.op_type for node in model.graph] == ["QuantizeLinear", expected, "DequantizeLinear"]


def test_a_result_that_is_read_as_float_too_leaves_as_both() -> None:
    net = _Quantised()
    total = net.add("Softmax", [net.dq(net.q("x"))], "gate")
    net.add("Add", [net.dq(net.q(total)), total], "sum")
    model = _islands(net.model("sum", [1, 4, 8, 8]))
    assert [node.op_type for node in model.graph] == ["QuantizeLinear", "QSoftmax", "QuantizeLinear", "QAdd"]


def _gate_of_pool() -> onnx.ModelProto:
    """Return x / 6 -> pool -> pool · (x / 6), with x and both results quantised, and the quotient never."""
    net = _Quantised()
    six = net.held("six", np.asarray(6, np.float32))
    ratio = net.add("Div", [net.dq(net.q("x")), six], "ratio")
    pooled = net.dq(net.q(net.add("GlobalAveragePool", [ratio], "pool"), 0.01))
    return net.model(net.dq(net.q(net.add("Mul", [ratio, pooled], "gated"), 0.01)), [1, 4, 8, 8])


def test_an_elementwise_result_is_computed_by_each_of_its_readers() -> None:
    proto = _gate_of_pool()
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    model = _islands(proto)
    operators = [node.op_type for node in model.graph]
    assert operators == ["QuantizeLinear", "QDivGlobalAveragePool", "QDivMul", "DequantizeLinear"]
    unfuse(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_what_each_reader_computes_keeps_its_bits() -> None:
    proto = _gate_of_pool()
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    plain = Session(proto.SerializeToString()).run(feeds)
    fused = Session(ir.to_proto(_islands(proto)).SerializeToString()).run(feeds)
    assert all(np.array_equal(plain[name], fused[name]) for name in plain)


def test_an_elementwise_result_that_is_an_output_is_stored() -> None:
    proto = _gate_of_pool()
    proto.graph.output.append(helper.make_tensor_value_info("ratio", TensorProto.FLOAT, [1, 4, 8, 8]))
    operators = [node.op_type for node in _islands(proto).graph]
    assert operators == ["QuantizeLinear", "QDiv", "QGlobalAveragePool", "QMul", "DequantizeLinear"]


def _sums(count: int) -> onnx.ModelProto:
    """Return a chain of sums of floats, each with one more quantised operand, whose results a pool reads, too."""
    net = _Quantised()
    total = other = net.dq(net.q("x"))
    for i in range(count):
        other = net.dq(net.q(net.add("MaxPool", [other], f"p{i}", kernel_shape=[1, 1])))
        total = net.add("Sum", [total, other], f"t{i}")
        net.add("GlobalAveragePool", [total], f"side{i}")
    proto = net.model(total, [1, 4, 8, 8])
    proto.graph.output.extend(
        helper.make_tensor_value_info(f"side{i}", TensorProto.FLOAT, [1, 4, 1, 1]) for i in range(count)
    )
    return proto


def test_no_more_than_the_bytes_of_the_float_stand_in_for_it() -> None:
    """Four 8-bit operands have the bytes of one float32: with a fifth, the sum of four is computed once, and the next ones read floats."""
    operators = Counter(keys.meta_op(node.op_type) for node in _islands(_sums(5)).graph)
    assert operators["QSumGlobalAveragePool"] == 1
    assert operators["QSumSumSumGlobalAveragePool"] == 1
    assert operators["QSumSumSumSum"] == 1
    assert not any(name.count("Sum") > 4 for name in operators)


def test_steps_of_a_norm_read_the_quantised_operand() -> None:
    """The deviation from a mean has two readers: both compute it from the quantised tensor and the mean, which is small."""
    net = _Quantised()
    x = net.dq(net.q("x"))
    off = net.add("Sub", [x, net.add("ReduceMean", [x], "mean", axes=[-1])], "off")
    two, small = net.held("two", np.asarray(2, np.float32)), net.held("small", np.asarray(1e-5, np.float32))
    variance = net.add("ReduceMean", [net.add("Pow", [off, two], "square")], "variance", axes=[-1])
    root = net.add("Sqrt", [net.add("Add", [variance, small], "sum")], "root")
    model = _islands(net.model(net.dq(net.q(net.add("Div", [off, root], "norm"))), [1, 4, 8, 8]))
    assert not {"off", "square"} & {value.name for node in model.graph for value in node.outputs}
    assert [node.op_type for node in model.graph if "Pow" in node.op_type] == ["QSubPowReduceMeanAddSqrtDiv"]


def test_a_norm_whose_deviation_is_in_an_island_is_not_found_the_second_time() -> None:
    """It is centred, so it is no RMSNorm; that its deviation is an output keeps it from being a LayerNorm."""
    net = _Quantised()
    x = net.dq(net.q("x"))
    off = net.add("Sub", [x, net.add("ReduceMean", [x], "mean", axes=[-1])], "off")
    small = net.held("small", np.asarray(1e-5, np.float32))
    variance = net.add("ReduceMean", [net.add("Mul", [off, off], "square")], "variance", axes=[-1])
    root = net.add("Sqrt", [net.add("Add", [variance, small], "sum")], "root")
    proto = net.model(net.add("Div", [off, root], "norm"), [1, 4, 8, 8])
    proto.graph.output.append(helper.make_tensor_value_info("off", TensorProto.FLOAT, [1, 4, 8, 8]))
    fused = api.fuse(proto)
    assert "QSub" in [node.op_type for node in fused.model.graph]
    assert not api.fuse(fused.model).fused


def test_weights_that_are_moved_after_they_are_dequantised_stay_int8() -> None:
    net = _Quantised()
    net.held("rows", np.asarray([1, 256], np.int64))
    flat = net.add("Reshape", [net.dq(net.q("x")), "rows"], "flat")
    weight = net.add("Transpose", [net.weight("w", 6, 256)], "turned", perm=[1, 0])
    net.dq(net.q(net.add("MatMul", [net.dq(net.q(flat)), weight], "product")))
    model = _islands(net.model("product_q_d", [1, 6]))
    call = next(node for node in model.graph if node.op_type == "QMatMul")
    assert "w_w" in {value.name for value in call.inputs if value is not None}
    assert not any(node.op_type == "Transpose" for node in model.graph)


def _quantised_gelu() -> onnx.ModelProto:
    """Return x · (1 + erf(x / √2)) / 2 with every result quantised; the pair after x has two readers."""
    net = _Quantised()
    x = net.dq(net.q("x"))
    root = net.held("root", np.asarray(2**0.5, np.float32))
    one, half = net.held("one", np.asarray(1, np.float32)), net.held("half", np.asarray(0.5, np.float32))
    erf = net.dq(net.q(net.add("Erf", [net.dq(net.q(net.add("Div", [x, root], "ratio")))], "erf")))
    total = net.dq(net.q(net.add("Add", [erf, one], "total")))
    product = net.dq(net.q(net.add("Mul", [x, total], "product")))
    return net.model(net.dq(net.q(net.add("Mul", [product, half], "gelu"))), [1, 4, 8, 8])


def test_float_patterns_are_found_through_what_quantises_and_dequantises() -> None:
    proto = _quantised_gelu()
    result = api.fuse(proto)
    assert {one.name: len(one.calls) for one in result.patterns if one.calls} == {"GeLU": 1, "QuantisedIsland": 1}
    assert [node.op_type for node in result.model.graph] == ["QuantizeLinear", "QGeLU", "DequantizeLinear"]
    assert result.verdict is not None and all(one.max_abs == 0 for one in result.verdict.outputs)
    assert Counter(node.op_type for node in api.unfuse(result.model).model.graph) == Counter(
        node.op_type for node in proto.graph.node
    )


def test_a_value_that_is_also_read_outside_keeps_the_pattern_from_being_fused() -> None:
    """The copy that queries see has one reader where the model has a quantised result that is an output."""
    proto = _quantised_gelu()
    proto.graph.output.append(helper.make_tensor_value_info("total_q", TensorProto.INT8, [1, 4, 8, 8]))
    result = api.fuse(proto)
    assert not any(one.calls for one in result.patterns if one.name == "GeLU")
    assert {value.name for value in result.model.graph.outputs} == {"gelu_q_d", "total_q"}


def test_a_query_copies_a_dequantiser_that_others_read() -> None:
    """Both products read one DequantizeLinear: neither match takes it from the other, and unfuse makes one node of both copies."""
    net = _Quantised()
    shared = net.dq(net.q("x"))
    left, right = net.add("Sigmoid", [shared], "left"), net.add("Sigmoid", [shared], "right")
    proto = net.model(net.add("Add", [left, right], "sum"), [1, 4, 8, 8])
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    result = api.fuse(proto, ["DequantizeLinear~>Sigmoid"])
    assert [node.op_type for node in result.model.graph] == ["QuantizeLinear", "MetaOp", "MetaOp", "Add"]
    assert ir.to_proto(api.unfuse(result.model).model).SerializeToString(deterministic=True) == before


class _AtRun(_Quantised):
    """A graph of products of integers whose left operand is quantised at run time, as onnxruntime's dynamic quantiser writes them."""

    def quantised(self, value: str) -> str:
        results = [f"{value}_q", f"{value}_scale", f"{value}_zero"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [value], results, name=f"n_{value}_q"))
        return value

    def product(self, value: str, name: str) -> str:
        weight = self.held(f"{name}_w", np.random.default_rng(len(name)).integers(-9, 9, (8, 8)).astype(np.int8))
        scale, zero = self.pair(f"{name}_w", 0.1, 0)
        sums = self.add("MatMulInteger", [f"{value}_q", weight, f"{value}_zero", zero], f"{name}_sums")
        both = self.add("Mul", [f"{value}_scale", scale], f"{name}_scale")
        cast = self.add("Cast", [sums], f"{name}_cast", to=TensorProto.FLOAT)
        bias = self.held(f"{name}_bias", np.ones(8, np.float32))
        return self.add("Add", [self.add("Mul", [cast, both], f"{name}_scaled"), bias], name)


def test_a_product_of_integers_is_one_kernel_with_its_scale_bias_and_activation() -> None:
    net = _AtRun()
    given = net.quantised(net.add("Relu", ["x"], "given"))
    proto = net.model(net.add("Relu", [net.product(given, "linear")], "y"), [1, 4, 8, 8])
    model = _islands(proto)
    operators = [node.op_type for node in model.graph]
    assert operators == ["Relu", "DynamicQuantizeLinear", "QMatMulIntegerAddRelu"]
    read = {value.name for value in model.graph[2].inputs if value is not None}
    assert read == {"given_q", "given_scale", "given_zero", "linear_w", "linear_w_s", "linear_w_z", "linear_bias"}


@pytest.mark.parametrize("later", [False, True])
def test_what_quantises_at_run_time_is_inside_where_its_floats_stay_stored(later: bool) -> None:
    """Where the floats are read later, the quantised tensor would need bytes beside them; each reader then quantises for itself."""
    net = _AtRun()
    given = net.quantised(net.add("Relu", ["x"], "given"))
    total = net.add("Add", [net.product(given, "left"), net.product(given, "right")], "sum")
    proto = net.model(net.add("Add", [total, given if later else total], "y"), [1, 4, 8, 8])
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    model = _islands(proto)
    counted = Counter(keys.meta_op(node.op_type) for node in model.graph)
    assert (counted["DynamicQuantizeLinear"], counted["QMatMulIntegerAdd"]) == (0 if later else 1, 2)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    fused = Session(ir.to_proto(model).SerializeToString()).run(feeds)
    assert np.array_equal(Session(proto.SerializeToString()).run(feeds)["y"], fused["y"])
    unfuse(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_sums_of_integers_that_are_read_as_such_stay() -> None:
    net = _AtRun()
    y = net.product(net.quantised("x"), "linear")
    proto = net.model(y, [1, 4, 8, 8])
    proto.graph.output.append(helper.make_tensor_value_info("linear_sums", TensorProto.INT32, [1, 4, 8, 8]))
    assert "MatMulInteger" in {node.op_type for node in _islands(proto).graph}


@pytest.mark.filterwarnings("ignore:ONNX has no operator")
def test_an_operator_that_onnxruntime_takes_in_no_function_is_no_island() -> None:
    net = _Quantised()
    scale = net.held("ones", np.ones(8, np.float32))
    net.dq(net.q(net.add("SimplifiedLayerNormalization", [net.dq(net.q("x")), scale], "norm")))
    operators = [node.op_type for node in _islands(net.model("norm_q_d", [1, 4, 8, 8])).graph]
    assert "SimplifiedLayerNormalization" in operators


def quantised_attention(tokens: int = 32, width: int = 16, guarded: bool = False) -> onnx.ModelProto:
    """Return quantised attention of two heads: Q, K and V from products, a mask, Softmax, and the product with V."""
    net = _Quantised()
    net.held("mask", np.triu(np.full((tokens, tokens), -9, np.float32), 1))
    net.held("heads", np.asarray([1, tokens, 2, width], np.int64))
    net.held("flat", np.asarray([1, tokens, 2 * width], np.int64))
    x = net.dq(net.q("x"))

    def head(name: str, perm: list[int]) -> str:
        product = net.dq(net.q(net.add("MatMul", [x, net.weight(name, 2 * width, 2 * width)], f"{name}_m")))
        split = net.dq(net.q(net.add("Reshape", [product, "heads"], f"{name}_r")))
        return net.dq(net.q(net.add("Transpose", [split], f"{name}_t", perm=perm)))

    query, keys, values = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
    scores = net.dq(net.q(net.add("MatMul", [query, keys], "scores"), 0.5), 0.5)
    weights = net.add("Softmax", [net.add("Add", [scores, "mask"], "masked")], "weights", axis=-1)
    weights = net.dq(net.q(weights, 0.01), 0.01)
    if guarded:
        net.held("none", np.asarray(0, np.float32))
        weights = net.add("Where", [net.add("IsNaN", [weights], "nan"), "none", weights], "guarded")
    context = net.dq(net.q(net.add("MatMul", [weights, values], "context")))
    merged = net.dq(net.q(net.add("Transpose", [context], "merged", perm=[0, 2, 1, 3])))
    net.add("Reshape", [merged, "flat"], "y")
    model = net.model("y", [1, tokens, 2 * width])
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for size in (1, tokens, 2 * width):
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = size
    return model


@pytest.mark.parametrize("guarded", [False, True])
def test_attention_is_one_island_whose_result_may_lie_over_q(guarded: bool) -> None:
    proto = quantised_attention(guarded=guarded)
    before = ir.to_proto(load(proto)).SerializeToString(deterministic=True)
    model = _islands(proto)
    (call,) = (node for node in model.graph if node.op_type == "QScaledDotProductAttention")
    assert [value.name for value in call.outputs] == ["context_q"]
    assert call.inputs[0] is not None and call.inputs[0].name == "query_t_q"
    assert model.functions[call.op_identifier()].metadata_props[keys.IN_PLACE] == "[0]"
    assert not {"QSoftmax", "QMatMulSoftmax"} & {node.op_type for node in model.graph}
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 32)).astype(np.float32)}
    plain = Session(proto.SerializeToString()).run(feeds)
    fused = Session(ir.to_proto(model).SerializeToString()).run(feeds)
    assert all(np.array_equal(plain[name], fused[name]) for name in plain)
    unfuse(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_attention_of_few_tokens_stays_apart_because_one_kernel_needs_more_bytes() -> None:
    """Q, K, V and the result are live at once; scores of few tokens are smaller than K."""
    assert "QScaledDotProductAttention" not in {node.op_type for node in _islands(quantised_attention(8, 16)).graph}


def test_attention_whose_scores_are_read_elsewhere_stays_apart() -> None:
    proto = quantised_attention()
    proto.graph.output.append(helper.make_tensor_value_info("scores_q", TensorProto.INT8, [1, 2, 32, 32]))
    assert "QScaledDotProductAttention" not in {node.op_type for node in _islands(proto).graph}


def test_attention_of_floats_is_no_island() -> None:
    """K is stored as floats: the kernel would compute with both."""
    proto = quantised_attention()
    reader = next(node for node in proto.graph.node if node.name == "n_scores")
    reader.input[1] = "key_t"
    assert "QScaledDotProductAttention" not in {node.op_type for node in _islands(proto).graph}


def test_the_products_of_attention_are_lowered_each() -> None:
    for patterns in ([], ["quantised"]):
        lowered = api.fuse(quantised_attention(), patterns, lower="ort")
        made = Counter(keys.meta_op(node.op_type) for node in lowered.model.graph)
        assert made["QLinearMatMul"] == 5
        assert made["QScaledDotProductAttention"] == 0


def test_an_island_whose_results_nobody_reads_stays() -> None:
    net = _Quantised()
    seen = net.dq(net.q("x"))
    net.q(net.add("Sigmoid", [seen], "unread"))
    read = net.dq(net.q(net.add("Relu", [seen], "read")))
    model = _islands(net.model(read, [1, 4, 8, 8]))
    assert [node.op_type for node in model.graph if node.domain == keys.DOMAIN] == ["QRelu"]


DYNAMIC = """<ir_version: 10, opset_import: ["": 17, "local": 1]>
  g (float[2, 4] x) => (float[2, 3] y%s) <float s = {0.05}, uint8 z = {3}, int8[4, 3] w = {1}, int8 wz = {0}, float ws = {0.1}> {
    %s
    q, qs, qz = DynamicQuantizeLinear(d)  i = MatMulInteger(q, w, qz, wz)  f = Cast <to = 1> (i)  t = Mul(qs, ws)  y = Mul(f, t)
  }"""
QUANTISED_BEFORE = "a = QuantizeLinear(x, s, z)  b = QuantizeLinear(x, s, z)  d = DequantizeLinear(a, s, z)"


def _dynamic(before: str, outputs: str = "", function: str = "") -> onnx.ModelProto:
    model = onnx.parser.parse_model(DYNAMIC % (outputs, before) + function)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    weight.CopyFrom(numpy_helper.from_array(np.arange(12, dtype=np.int8).reshape(4, 3), "w"))
    return model


@pytest.mark.parametrize("outputs", ["", ", float[2, 4] d"])
def test_what_quantises_dequantised_numbers_as_the_model_runs_is_in_one_island(outputs: str) -> None:
    """DynamicQuantizeLinear is an island with the DequantizeLinear that it reads, and none with the product that reads it."""
    fused = api.fuse(_dynamic(QUANTISED_BEFORE, outputs))
    assert fused.verdict is not None and fused.verdict.equal
    assert api.unfuse(fused.model).model.graph.num_nodes() == 8


def test_a_scale_that_is_an_output_stays() -> None:
    fused = api.fuse(_dynamic("d = Identity(x)", ", float t"))
    assert fused.verdict is not None and fused.verdict.equal
    assert [value.name for value in fused.model.graph.outputs] == ["y", "t"]


def test_patterns_are_found_in_functions_of_a_quantised_model() -> None:
    """The float view has the functions of the model, too."""
    function = '<domain: "local", opset_import: ["": 17]> act (a) => (c) { b = Sigmoid(a)  c = Mul(a, b) }'
    fused = api.fuse(_dynamic("d = local.act(x)", function=function))
    assert fused.verdict is not None and fused.verdict.equal
    (act,) = (one for one in fused.model.functions.values() if one.domain == "local")
    assert [node.op_type for node in act] == ["SiLU"]
