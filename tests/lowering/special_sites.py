"""Random sites of every lowering: `random_site` makes the same model for the same seed, of any pattern, target and element type.

`tests.bench.special_values` feeds them special values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from onnxtile import api
from tests import build
from tests.lowering import test_activations as activations
from tests.lowering import test_norms as norms
from tests.lowering import test_rotary as rotary
from tests.lowering import test_spatial as spatial
from tests.lowering.conftest import Bench, retyped
from tests.lowering.test_islands import LOWERED, MOVED, OTHERS, Net
from tests.lowering.test_qdq import products

FLOATS = {"float": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "double": TensorProto.DOUBLE}
Random = np.random.Generator


@dataclass(frozen=True)
class Site:
    """A model with one site, what it is called, the target it is lowered to, and the element type of its floats."""

    name: str
    model: onnx.ModelProto
    target: str
    dtype: str


@dataclass(frozen=True)
class _Text:
    """A model in ONNX text: y = body(x, further inputs, constants), for opset 17."""

    body: str
    constants: dict[str, Any]
    x: str
    y: str = ""
    inputs: str = ""


def random_site(seed: int) -> Site:
    """Return a site with its target, both drawn."""
    random = np.random.default_rng(seed)
    if random.random() < 0.15:
        return _island(random)
    if random.random() < 0.12:
        return _dynamic(random)
    name = _one(random, [*_TEXTS, *("ScaledDotProductAttention",) * 6])
    text = _attention(random) if name == "ScaledDotProductAttention" else _TEXTS[name](random)
    dtype = _one(random, ["float", "float", "float16", "double"])
    constants = {key: value for key, value in text.constants.items() if re.search(rf"\b{key}\b", text.body)}
    model = Bench.model(text.body, constants, x=text.x, y=text.y or text.x, inputs=text.inputs)
    return Site(name.partition(":")[0], retyped(model, FLOATS[dtype]), _one(random, ["onnx", "ort"]), dtype)


def _one(random: Random, among: Any) -> Any:
    among = list(among)
    return among[int(random.integers(len(among)))]


def _shape(*dims: Any) -> str:
    return f"float[{','.join(str(dim) for dim in dims)}]"


def _dims(random: Random, *, last: int = 8) -> tuple[int, ...]:
    return (*(int(n) for n in random.integers(1, 5, int(random.integers(1, 4)))), last)


def _activation(body: str) -> Callable[[Random], _Text]:
    return lambda random: _Text(body, activations.NUMBERS, _shape(*_dims(random, last=int(random.integers(1, 9)))))


def _norm(random: Random) -> _Text:
    body = _one(random, [norms.LAYER, norms.BARE, norms.RMS])
    return _Text(
        norms.over(body), {**norms.NUMBERS, "eps": _one(random, [1e-3, 1e-5, 1e-12])}, _shape(2, *_dims(random))
    )


def _skipped_norm(random: Random) -> _Text:
    text, body = _norm(random), _one(random, [norms.LAYER, norms.RMS])
    summed = "a0 = Add(x, z) " + re.sub(r"\bx\b", "a0", norms.over(body))
    return _Text(summed, text.constants, text.x, inputs=f", {text.x} z")


def _softmax(random: Random) -> _Text:
    axis = _one(random, [-1, 1])
    shifted = spatial.SOFTMAX.replace("AXES", str(axis))
    body = _one(random, [shifted, "e = Exp(x) z = ReduceSum(e, axes) y = Div(e, z)"])
    return _Text(body, {"axes": [axis]}, _shape(2, *_dims(random)))


def _length(random: Random) -> _Text:
    bodies = (
        "l = ReduceL2<axes = [AXIS]>(x) y = Div(x, l)",
        "s = Mul(x, x) t = ReduceSum(s, axes) l = Sqrt(t) y = Div(x, l)",
        "s = Mul(x, x) t = ReduceSum(s, axes) l = Sqrt(t) r = Reciprocal(l) y = Mul(x, r)",
        "l = ReduceL2<axes = [AXIS]>(x) c = Max(l, least) y = Div(x, c)",
    )
    axis = _one(random, [-1, 1])
    body = _one(random, bodies).replace("AXIS", str(axis))
    return _Text(body, {"axes": [axis], "least": 1e-12}, _shape(2, *_dims(random)))


def _instances(random: Random) -> _Text:
    return _Text(_one(random, [spatial.INSTANCES, spatial.ALONE]), spatial.NUMBERS, spatial.SHAPE)


def _groups(random: Random) -> _Text:
    return _Text(_one(random, [spatial.SCALED, spatial.GROUPS.replace("b = ", "y = ")]), spatial.GROUPED, spatial.SHAPE)


def _rotary(random: Random) -> _Text:
    del random
    return _Text(rotary.HALVES, rotary.NUMBERS, rotary.SHAPE)


def _linear(random: Random) -> _Text:
    rows, width, made = (int(n) for n in random.integers(1, 7, 3))
    held = {"w": random.normal(size=(width, made)), "b": random.normal(size=made)}
    if random.random() < 0.3:
        held["w"][:, 0] = _one(random, [0.0, np.inf, np.nan])
    body = _one(random, ["m = MatMul(x, w) y = Add(m, b)", "y = Gemm(x, w, b)"])
    return _Text(body, held, _shape(rows, width), _shape(rows, made))


_TEXTS: dict[str, Callable[[Random], _Text]] = {
    **{f"{name}: {body[:12]}": _activation(body) for name, body, *_ in activations.SITES},
    **{f"{name}: {body[:12]}": _activation(body) for name, body, *_ in activations.TWICE},
    **{"LayerNorm": _norm, "SkipLayerNorm": _skipped_norm, "Softmax": _softmax, "L2Norm": _length},
    **{"InstanceNorm": _instances, "GroupNorm": _groups, "RotaryEmbedding": _rotary, "Linear": _linear},
}

_GUARDS = (
    "w = Softmax<axis = -1>(SCORES)",
    "w = Softmax<axis = -1>(SCORES)",
    "p = Softmax<axis = -1>(SCORES) n = IsNaN(p) w = Where(n, zero, p)",
)


def _attention(random: Random) -> _Text:
    batch, heads, rows, columns = (int(n) for n in (*random.integers(1, 3, 2), *random.integers(1, 5, 2)))
    lead = (batch, heads) if random.random() < 0.8 else (batch,)
    size, v_size = 4, int(random.integers(1, 5))
    perm = "[0, 1, 3, 2]" if len(lead) == 2 else "[0, 2, 1]"
    body = f"t = Transpose<perm = {perm}>(k) m = MatMul(x, t) " + _one(
        random, ["d = Div(m, three)", "d = Mul(m, third)"]
    )
    masked, inputs, held = _mask(random, (*lead, rows, columns))
    scores = "a" if masked else "d"
    weights = _one(random, _GUARDS).replace("SCORES", scores)
    numbers = {"three": 3.0, "third": 1 / 3, "zero": 0.0, "low": _one(random, [-np.inf, -1e38 * 3, -1e4]), **held}
    given = f", {_shape(*lead, columns, size)} k, {_shape(*lead, columns, v_size)} v{inputs}"
    return _Text(
        f"{body} {masked} {weights} y = MatMul(w, v)",
        numbers,
        _shape(*lead, rows, size),
        _shape(*lead, rows, v_size),
        given,
    )


def _mask(random: Random, scores: tuple[int, ...]) -> tuple[str, str, dict[str, Any]]:
    """Return how scores d become a, the text of an input, and constants."""
    kind = _one(random, ["", "added", "added", "held", "chosen", "chosen, held"])
    if not kind:
        return "", "", {}
    dims = tuple(1 if i < len(scores) - 2 and random.random() < 0.7 else dim for i, dim in enumerate(scores))
    seen = random.random(dims) < 0.6
    if random.random() < 0.8:
        seen[..., 0] = True
    if kind == "added":
        return "a = Add(d, mask)", f", {_shape(*dims)} mask", {}
    if kind == "held":
        low = _one(random, [-np.inf, -1e4])
        return "a = Add(d, mask)", "", {"mask": np.where(seen, 0.0, low)}
    body = _one(random, ["a = Where(mask, d, low)", "a = Where(mask, low, d)"])
    if kind == "chosen":
        return body, f", bool[{','.join(map(str, dims))}] mask", {}
    return body, "", {"mask": seen if "d, low" in body else ~seen}


def _island(random: Random) -> Site:
    """Return an island between DequantizeLinear and QuantizeLinear, or, made of it, an operator on what is stored."""
    dtype = _one(random, [np.int8, np.uint8])
    back = random.random() < 0.5
    cases = [case for case, (_, made) in LOWERED.items() if not back or (not MOVED & {*made} and case not in OTHERS)]
    case = _one(random, [case for case in cases if dtype is np.uint8 or "attention" not in case])
    model = LOWERED[case][0](Net(dtype))
    if back:
        model = ir.to_proto(api.fuse(model, lower="ort").model)
    return Site(f"island: {case}", model, "qdq" if back else _one(random, ["ort", "onnx"]), np.dtype(dtype).name)


def _dynamic(random: Random) -> Site:
    """Return a product that is quantised while it runs, or one with weights in blocks of 4 bits."""
    if random.random() < 0.25:
        logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.WARNING)
        quantiser = MatMulNBitsQuantizer(
            products(rows=64),
            block_size=32,
            is_symmetric=bool(random.random() < 0.5),
            quant_format=QuantFormat.QOperator,
        )
        quantiser.process()
        return Site("MatMulNBits", quantiser.model.model, "qdq", "float")
    rows, width, made = (int(n) for n in random.integers(1, 7, 3))
    is_conv = random.random() < 0.3
    shapes: tuple[tuple[int, ...], ...] = ((rows, width), (rows, made), (width, made))
    x, y, w = ((1, 3, 5, 5), (1, 4, 3, 3), (4, 3, 3, 3)) if is_conv else shapes
    weight = random.integers(-120, 120, w).astype(np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger" if is_conv else "MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=1),
        helper.make_node("Mul", ["s", "ws"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    held = {"w": weight, "wz": np.int8(0), "ws": np.float32(0.02)}
    model = build.model(nodes, {"x": (1, x)}, {"y": (1, y)}, held, opset=21)
    return Site("dynamic " + nodes[1].op_type, model, _one(random, ["qdq", "ort"]), "float")


def special_numbers(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the special values of an element type, by the names that the documentation gives them."""
    if dtype == np.bool_:
        return {"true": True, "false": False}
    if dtype.kind in "iu":
        low, high = (-128, 127) if dtype.kind == "i" else (0, 255)
        return {"lowest": low, "highest": high, "middle": (low + high + 1) // 2}
    bounds = np.finfo(dtype)
    return {
        **{"0": 0.0, "-0": -0.0, "NaN": np.nan, "+inf": np.inf, "-inf": -np.inf},
        **{"huge": float(bounds.max), "-huge": float(bounds.min)},
        **{"denormal": float(bounds.smallest_subnormal), "tiny": float(bounds.smallest_normal)},
    }


def draws(site: Site, random: Random, count: int) -> Iterator[tuple[set[str], dict[str, Any]]]:
    """Yield inputs of a site with special values at random places of one or several inputs, and the names of these values."""
    held = {tensor.name for tensor in site.model.graph.initializer}
    inputs = [info for info in site.model.graph.input if info.name not in held]
    for _ in range(count):
        feeds = {info.name: _random(info, random) for info in inputs}
        varied = [name for name in feeds if random.random() < 0.5] or [_one(random, feeds)]
        named: set[str] = set()
        for name in varied:
            numbers = special_numbers(feeds[name].dtype)
            number = _one(random, numbers)
            named.add(number)
            _put(feeds[name], numbers[number], random)
        yield named, feeds


def _random(info: onnx.ValueInfoProto, random: Random) -> Any:
    dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    if dtype == np.bool_:
        return random.random(dims) < 0.6
    if dtype.kind in "iu":
        return random.integers(*((-128, 128) if dtype.kind == "i" else (0, 256)), dims).astype(dtype)
    return random.standard_normal(dims).astype(dtype)


def _put(array: Any, number: Any, random: Random) -> None:
    """Write a number everywhere, along one axis at one place, at one index of an axis, or at a few elements."""
    kind = int(random.integers(4))
    if kind == 0 or not array.ndim:
        array[...] = number
    elif kind == 1:
        axis = int(random.integers(array.ndim))
        array[tuple(slice(None) if i == axis else int(random.integers(dim)) for i, dim in enumerate(array.shape))] = (
            number
        )
    elif kind == 2:
        axis = int(random.integers(array.ndim))
        array[(slice(None),) * axis + (int(random.integers(array.shape[axis])),)] = number
    else:
        for place in random.integers(array.size, size=int(random.integers(1, 4))):
            array.flat[int(place)] = number
