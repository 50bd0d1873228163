"""Numbers of few bits, and operators of the newest opsets. Each takes what fits from the scope."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.random_graphs.picks import Step, is_float, picture
from tests.random_graphs.scope import FLOAT, INT32, INT64, Scope, Tensor

_QUANTISED = {
    TensorProto.INT16: 21,
    TensorProto.UINT16: 21,
    TensorProto.INT4: 21,
    TensorProto.UINT4: 21,
    TensorProto.FLOAT8E4M3FN: 19,
    TensorProto.FLOAT8E5M2: 19,
    TensorProto.INT2: 25,
}
"""The element types that QuantizeLinear takes besides 8-bit integers, and the first opset in which it does."""
_MOST = {TensorProto.INT4: 7, TensorProto.UINT4: 15, TensorProto.INT2: 1, TensorProto.UINT16: 300}


def _types(scope: Scope) -> list[int]:
    return [code for code, first in _QUANTISED.items() if scope.opset >= first]


def _numbers(scope: Scope, dims: tuple[int, ...], code: int) -> Tensor:
    """Return a constant of small whole numbers."""
    most = _MOST.get(code, 8)
    least = 0 if code in (TensorProto.UINT4, TensorProto.UINT16) else -most
    found = [scope.random.randint(least, most) for _ in range(int(np.prod(dims)))]
    return scope.constant(np.asarray(found, np.float32).reshape(dims), code)


def low_bit_pair(scope: Scope) -> object:
    """Q and DQ of an element type of few bits, or of sixteen."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1)
    if x is None or not scope.shared.steps or not _types(scope):
        return None
    code = scope.random.choice(_types(scope))
    given = [scope.number(0.25, FLOAT), scope.constant(np.asarray(0, np.float32), code)]
    if given[0].rank:
        return None
    q = scope.one("QuantizeLinear", [x, *given], code, x.dims)
    if code == TensorProto.FLOAT8E4M3FN and scope.opset >= 21 and scope.chance(0.5):
        q = scope.one("Transpose", [q], code, q.dims[::-1])
    return scope.one("DequantizeLinear", [q, *given], FLOAT, q.dims)


def low_bit_weight(scope: Scope) -> object:
    """A product with a weight of few bits, with one scale, one for each column, or one for each block."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 2 and isinstance(t.dims[-1], int))
    if x is None or not _types(scope):
        return None
    code, n, k = scope.random.choice(_types(scope)), scope.random.choice([4, 8]), x.at(-1)
    w = _numbers(scope, (k, n), code)
    kind = scope.random.choice(["one", "columns", "blocks"])
    if kind == "blocks" and scope.opset >= 21 and k % 2 == 0 and k:
        scales = scope.weight((k // 2, n), positive=True)
        loose = scope.one("DequantizeLinear", [w, scales], FLOAT, w.dims, axis=0, block_size=2)
    elif kind == "columns":
        loose = scope.one("DequantizeLinear", [w, scope.weight((n,), positive=True)], FLOAT, w.dims, axis=1)
    else:
        loose = scope.one("DequantizeLinear", [w, scope.constant(np.asarray(0.125, np.float32))], FLOAT, w.dims)
    return scope.one("MatMul", [x, loose], FLOAT, (*x.dims[:-1], n))


def low_bit_cast(scope: Scope) -> object:
    """A Cast to few bits, and back."""
    x = scope.pick(lambda t: t.dtype == FLOAT)
    types = [code for code in _types(scope) if code not in (TensorProto.INT2,)]
    if x is None or not types or not scope.shared.steps:
        return None
    code = scope.random.choice(types)
    narrow = scope.one("Cast", [scope.one("Tanh", [x], FLOAT, x.dims)], code, x.dims, to=code)
    return scope.one("Cast", [narrow], FLOAT, x.dims, to=FLOAT)


def subnormal(scope: Scope) -> object:
    """A constant of subnormal numbers, which some kernels round to zero."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1 and isinstance(t.dims[-1], int))
    if x is None:
        return None
    tiny = scope.constant(np.linspace(1e-42, 1e-38, max(x.at(-1), 1)).astype(np.float32)[: x.at(-1)])
    made = scope.one(scope.random.choice(["Mul", "Add"]), [x, tiny], FLOAT, x.dims)
    return (
        scope.one("Mul", [made, scope.constant(np.asarray(1e30, np.float32))], FLOAT, x.dims)
        if scope.chance(0.3)
        else made
    )


def group_norm(scope: Scope) -> object:
    """GroupNormalization of an image."""
    x = picture(scope)
    if x is None or scope.opset < 21 or x.at(1) % 2:
        return None
    given = [scope.weight((x.at(1),)) for _ in range(2)]
    return scope.one("GroupNormalization", [x, *given], FLOAT, x.dims, num_groups=2)


def rms_norm(scope: Scope) -> object:
    """RMSNormalization, of float or float16."""
    x = scope.pick(lambda t: is_float(t) and t.rank >= 2 and isinstance(t.dims[-1], int))
    if x is None or scope.opset < 23:
        return None
    return scope.one("RMSNormalization", [x, scope.weight((x.at(-1),), x.dtype)], x.dtype, x.dims)


def attention(scope: Scope) -> object:
    """Attention as one operator, with a mask or causal now and then, with grouped heads, with a cache."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank == 3 and t.dims[-1] in (4, 8) and t.is_static)
    if x is None or scope.opset < 23:
        return None
    wide = x.at(2)
    shared = scope.chance(0.3)
    narrow = wide // 2 if shared else wide
    q, k, v = (
        scope.one("MatMul", [x, scope.weight((wide, to))], FLOAT, (*x.dims[:2], to)) for to in (wide, narrow, narrow)
    )
    more = {"is_causal": 1} if scope.chance(0.3) else {}
    mask = [scope.weight((x.at(1), x.at(1)))] if not more and scope.chance(0.4) else []
    heads = {"q_num_heads": 2, "kv_num_heads": 1 if shared else 2}
    return scope.one("Attention", [q, k, v, *mask], FLOAT, x.dims, **heads, **more)


def rotary(scope: Scope) -> object:
    """RotaryEmbedding as one operator."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank == 4 and t.is_static and t.at(3) % 2 == 0 and t.at(3) >= 2)
    if x is None or scope.opset < 23:
        return None
    tables = [scope.weight((x.at(0), x.at(2), x.at(3) // 2)) for _ in range(2)]
    return scope.one("RotaryEmbedding", [x, *tables], FLOAT, x.dims, interleaved=scope.random.choice([0, 1]))


def newest(scope: Scope) -> object:
    """Swish, TensorScatter, CumProd or BitCast, where the opset has it and onnxruntime runs it."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1 and t.is_static)
    if x is None:
        return None
    kinds = ["Swish"] * (scope.opset == 24) + ["CumProd"] * (scope.opset >= 26)
    kinds += ["TensorScatter"] * (scope.opset >= 24 and x.rank == 3 and x.at(1) >= 2)
    kinds += ["BitCast"] * (scope.opset >= 26 and scope.shared.steps)
    kind = scope.random.choice(kinds) if kinds else None
    if kind == "CumProd":
        return scope.one(kind, [x, scope.constant(np.asarray(x.rank - 1, np.int64))], FLOAT, x.dims)
    if kind == "TensorScatter":
        update = scope.weight((x.at(0), 1, x.at(2)))
        places = scope.constant(np.asarray([scope.random.randrange(x.at(1)) for _ in range(x.at(0))], np.int64))
        return scope.one(kind, [x, update, places], FLOAT, x.dims)
    if kind == "BitCast":
        made = scope.one(kind, [x], INT32, x.dims, to=INT32)
        return scope.one(kind, [made], FLOAT, x.dims, to=FLOAT) if scope.chance(0.5) else made
    return scope.one(kind, [x], FLOAT, x.dims) if kind else None


def integers_of_a_table(scope: Scope) -> object:
    """An embedding: rows of a table by whole numbers."""
    x = scope.pick(lambda t: t.dtype == INT64 and not t.constant and t.rank <= 2)
    if x is None:
        return None
    rows = scope.constant(np.asarray(0, np.int64)), scope.constant(np.asarray(3, np.int64))
    if scope.opset < 12:
        return None
    bounded = scope.one("Clip", [x, *rows], INT64, x.dims)
    return scope.one("Gather", [scope.weight((4, 8)), bounded], FLOAT, (*x.dims, 8))


LOW_BITS: tuple[Step, ...] = (
    low_bit_pair,
    low_bit_pair,
    low_bit_weight,
    low_bit_weight,
    low_bit_cast,
    subnormal,
    group_norm,
    rms_norm,
    attention,
    attention,
    rotary,
    newest,
    newest,
    integers_of_a_table,
)
