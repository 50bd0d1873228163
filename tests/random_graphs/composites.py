"""Groups of operators as exporters write them, which the library's patterns look for, and quantised ones."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graphs.picks import MOST, Step, is_float, real
from tests.random_graphs.scope import FLOAT, HALF, INT8, INT32, UINT8, Scope, Tensor


def _either(scope: Scope, op: str, x: Tensor, other: Tensor, dims: tuple[int | str, ...] | None = None) -> Tensor:
    """Add a commutative operator, its operands in either order."""
    operands = [x, other] if scope.chance(0.7) else [other, x]
    return scope.one(op, operands, x.dtype, x.dims if dims is None else dims)


def _mean(scope: Scope, x: Tensor) -> Tensor:
    dims = (*x.dims[:-1], 1)
    if scope.opset >= 18:
        return scope.one("ReduceMean", [x, scope.ints(-1)], x.dtype, dims)
    return scope.one("ReduceMean", [x], x.dtype, dims, axes=[-1])


def _rows(scope: Scope) -> Tensor | None:
    return scope.pick(lambda t: is_float(t) and t.rank >= 2 and isinstance(t.dims[-1], int))


def gelu(scope: Scope) -> object:
    """GELU written out."""
    x = scope.pick(lambda t: t.dtype == FLOAT)
    if x is None or scope.opset < 9:
        return None
    scaled = scope.one("Div", [x, scope.constant(np.asarray(math.sqrt(2), np.float32))], FLOAT, x.dims)
    grown = _either(scope, "Add", scope.one("Erf", [scaled], FLOAT, x.dims), scope.constant(np.asarray(1, np.float32)))
    half = scope.constant(np.asarray(0.5, np.float32))
    if scope.chance(0.5):
        return _either(scope, "Mul", _either(scope, "Mul", x, grown), half)
    return _either(scope, "Mul", _either(scope, "Mul", x, half), grown)


def swish(scope: Scope) -> object:
    """SiLU, QuickGELU, Mish or HardSwish written out."""
    x = real(scope)
    if x is None:
        return None
    kind = scope.random.choice(["silu", "quick", "mish", "hard"])
    if kind == "hard" and x.dtype == FLOAT:
        shifted = _either(scope, "Add", x, scope.constant(np.asarray(3, np.float32)))
        bounds = [scope.constant(np.asarray(number, np.float32)) for number in (0, 6)]
        if scope.opset < 11:
            clipped = scope.one("Clip", [shifted], FLOAT, x.dims, min=0.0, max=6.0)
        else:
            clipped = scope.one("Clip", [shifted, *bounds], FLOAT, x.dims)
        return scope.one("Div", [_either(scope, "Mul", x, clipped), bounds[1]], FLOAT, x.dims)
    if kind == "mish" and x.dtype == FLOAT:
        soft = scope.one("Softplus", [x], FLOAT, x.dims)
        return _either(scope, "Mul", x, scope.one("Tanh", [soft], FLOAT, x.dims))
    gate = x
    if kind == "quick":
        gate = _either(scope, "Mul", x, scope.constant(np.asarray(1.702, np.float32), x.dtype))
    return _either(scope, "Mul", x, scope.one("Sigmoid", [gate], x.dtype, x.dims))


def norm(scope: Scope) -> object:
    """LayerNorm or RMSNorm written out, after a residual sum now and then."""
    x = _rows(scope)
    if x is None or x.dtype != FLOAT:
        return None
    dims = x.dims
    other = scope.pick(lambda t: t.dtype == FLOAT and t.dims == dims)
    if other is not None and scope.chance(0.4):
        x = _either(scope, "Add", x, other)
    centred = x
    if scope.chance(0.6):
        centred = scope.one("Sub", [x, _mean(scope, x)], FLOAT, x.dims)
    two = scope.constant(np.asarray(2, np.float32))
    squared = (
        scope.one("Pow", [centred, two], FLOAT, x.dims)
        if scope.chance(0.6)
        else scope.one("Mul", [centred, centred], FLOAT, x.dims)
    )
    variance = _mean(scope, squared)
    epsilon = scope.constant(np.asarray(scope.random.choice([1e-5, 1e-6]), np.float32))
    root = scope.one("Sqrt", [_either(scope, "Add", variance, epsilon)], FLOAT, variance.dims)
    found = scope.one("Div", [centred, root], FLOAT, x.dims)
    if scope.chance(0.8):
        found = _either(scope, "Mul", found, scope.weight((x.at(-1),)))
    return _either(scope, "Add", found, scope.weight((x.at(-1),))) if scope.chance(0.6) else found


def softmax(scope: Scope) -> object:
    """Softmax written out."""
    x = _rows(scope)
    if x is None or x.dtype != FLOAT:
        return None
    dims = (*x.dims[:-1], 1)
    if scope.opset >= 18:
        top = scope.one("ReduceMax", [x, scope.ints(-1)], FLOAT, dims)
    else:
        top = scope.one("ReduceMax", [x], FLOAT, dims, axes=[-1])
    grown = scope.one("Exp", [scope.one("Sub", [x, top], FLOAT, x.dims)], FLOAT, x.dims)
    if scope.opset >= 13:
        total = scope.one("ReduceSum", [grown, scope.ints(-1)], FLOAT, dims)
    else:
        total = scope.one("ReduceSum", [grown], FLOAT, dims, axes=[-1])
    return scope.one("Div", [grown, total], FLOAT, x.dims)


def attention(scope: Scope) -> object:
    """Attention over three axes, with projections and heads now and then."""
    x = scope.pick(
        lambda t: is_float(t) and t.rank == 3 and isinstance(t.dims[-1], int) and t.at(-1) % 2 == 0 and t.at(-1) <= 16
    )
    if x is None:
        return None
    batch, tokens, wide = x.dims[0], x.dims[1], x.at(-1)
    with_heads = scope.chance(0.6)
    shape = scope.ints(0, 0, 2, wide // 2)
    found = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = scope.one("MatMul", [x, scope.weight((wide, wide), x.dtype)], x.dtype, x.dims)
        if scope.chance(0.5):
            made = _either(scope, "Add", made, scope.weight((wide,), x.dtype))
        if with_heads:
            cut = scope.one("Reshape", [made, shape], x.dtype, (batch, tokens, 2, wide // 2))
            made = scope.one("Transpose", [cut], x.dtype, [cut.dims[i] for i in order], perm=order)
        elif order[2] == 3:
            made = scope.one("Transpose", [made], x.dtype, (batch, wide, tokens), perm=[0, 2, 1])
        found.append(made)
    q, k, v = found
    scores = scope.one("MatMul", [q, k], x.dtype, (*q.dims[:-1], tokens))
    scale = scope.constant(np.asarray(2, np.float32), x.dtype)
    scaled = scope.one("Div", [scores, scale], x.dtype, scores.dims)
    weights = scope.one("Softmax", [scaled], x.dtype, scores.dims, axis=-1)
    mixed = scope.one("MatMul", [weights, v], x.dtype, v.dims)
    if not with_heads:
        return mixed
    turned = scope.one("Transpose", [mixed], x.dtype, (batch, tokens, 2, wide // 2), perm=[0, 2, 1, 3])
    merged = scope.one("Reshape", [turned, scope.ints(0, 0, wide)], x.dtype, x.dims)
    if scope.chance(0.6):
        merged = scope.one("MatMul", [merged, scope.weight((wide, wide), x.dtype)], x.dtype, x.dims)
    return merged


def gated(scope: Scope) -> object:
    """SwiGLU."""
    x = _rows(scope)
    if x is None:
        return None
    wide = scope.random.choice([4, 8])
    dims = (*x.dims[:-1], wide)
    gate, up = (scope.one("MatMul", [x, scope.weight((x.at(-1), wide), x.dtype)], x.dtype, dims) for _ in range(2))
    opened = _either(scope, "Mul", gate, scope.one("Sigmoid", [gate], x.dtype, dims))
    return _either(scope, "Mul", opened, up)


def rotary(scope: Scope) -> object:
    """A rotary embedding."""
    x = scope.pick(
        lambda t: (
            t.dtype == FLOAT
            and t.rank >= 3
            and isinstance(t.dims[-1], int)
            and t.at(-1) % 2 == 0
            and isinstance(t.dims[-2], int)
        )
    )
    if x is None or x.at(-1) == 0 or scope.opset < 10:
        return None
    half, last = x.at(-1) // 2, scope.ints(x.rank - 1)
    dims = (*x.dims[:-1], half)
    first = scope.one("Slice", [x, scope.ints(0), scope.ints(half), last], FLOAT, dims)
    second = scope.one("Slice", [x, scope.ints(half), scope.ints(x.at(-1)), last], FLOAT, dims)
    turned = scope.one("Concat", [scope.one("Neg", [second], FLOAT, dims), first], FLOAT, x.dims, axis=-1)
    tables = [scope.weight((x.at(-2), x.at(-1))) for _ in range(2)]
    return _either(scope, "Add", _either(scope, "Mul", x, tables[0]), _either(scope, "Mul", turned, tables[1]))


def _scale(scope: Scope, dtype: int) -> list[Tensor]:
    """Return a scale and a zero point."""
    kind = np.uint8 if dtype == UINT8 else np.int8
    zero = scope.random.choice([0, 3, 128]) if dtype == UINT8 else scope.random.choice([0, 0, -5])
    scale = scope.random.choice([1 / 16, 1 / 16, 1 / 8, 0.05])
    return [scope.constant(np.asarray(scale, np.float32)), scope.constant(np.asarray(zero, kind))]


def _quantised(scope: Scope, x: Tensor, dtype: int, given: list[Tensor]) -> Tensor:
    return scope.one("QuantizeLinear", [x, *given], dtype, x.dims)


def _floats(scope: Scope) -> Tensor | None:
    return scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1) if scope.shared.steps and scope.opset >= 10 else None


def quantised_pair(scope: Scope) -> object:
    """Q and DQ around an operator, as QDQ files have them."""
    x = _floats(scope)
    if x is None:
        return None
    dtype = scope.random.choice([UINT8, INT8])
    given = _scale(scope, dtype)
    found = scope.one("DequantizeLinear", [_quantised(scope, x, dtype, given), *given], FLOAT, x.dims)
    if scope.chance(0.6):
        found = scope.one(scope.random.choice(["Relu", "Sigmoid", "Identity"]), [found], FLOAT, x.dims)
        after = given if scope.chance(0.5) else _scale(scope, dtype)
        found = scope.one("DequantizeLinear", [_quantised(scope, found, dtype, after), *after], FLOAT, x.dims)
    return found


def quantised_product(scope: Scope) -> object:
    """A matrix product or a convolution with quantised operands, in QDQ form or as one operator."""
    is_image = scope.chance(0.5)
    x = scope.pick(
        lambda t: (
            t.dtype == FLOAT
            and (t.rank == 4 if is_image else t.rank == 2)
            and all(isinstance(d, int) for d in t.dims[1:])
            and t.size < MOST
        )
    )
    if x is None or not scope.shared.steps or scope.opset < 10:
        return None
    n, inputs = scope.random.choice([3, 4, 8]), x.at(1)
    given, weights, after = _scale(scope, UINT8), _scale(scope, INT8), _scale(scope, UINT8)
    w = scope.bytes_of((n, inputs, 1, 1) if is_image else (inputs, n), INT8)
    dims = (x.dims[0], n, *x.dims[2:])
    q = _quantised(scope, x, UINT8, given)
    if scope.chance(0.4):
        op = "QLinearConv" if is_image else "QLinearMatMul"
        made = scope.one(op, [q, *given, w, *weights, *after], UINT8, dims)
        return scope.one("DequantizeLinear", [made, *after], FLOAT, dims)
    operands = [
        scope.one("DequantizeLinear", [q, *given], FLOAT, x.dims),
        scope.one("DequantizeLinear", [w, *weights], FLOAT, w.dims),
    ]
    made = scope.one("Conv" if is_image else "MatMul", operands, FLOAT, dims)
    if scope.chance(0.4):
        made = scope.one("Relu", [made], FLOAT, dims)
    stored = _quantised(scope, made, UINT8, after)
    return scope.one("DequantizeLinear", [stored, *after], FLOAT, dims)


def quantised_sum(scope: Scope) -> object:
    """com.microsoft's QLinearAdd, QLinearMul, QLinearSigmoid or QLinearConcat."""
    x = _floats(scope)
    if x is None:
        return None
    dtype = scope.random.choice([UINT8, INT8])
    given, after = _scale(scope, dtype), _scale(scope, dtype)
    q = _quantised(scope, x, dtype, given)
    op = scope.random.choice(["QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"])
    operands = [q, *given, q, *given, *after] if op in {"QLinearAdd", "QLinearMul"} else [q, *given, *after]
    more = {"alpha": 0.25} if op == "QLinearLeakyRelu" else {}
    made = scope.one(op, operands, dtype, x.dims, domain="com.microsoft", **more)
    return scope.one("DequantizeLinear", [made, *after], FLOAT, x.dims)


def dynamic_product(scope: Scope) -> object:
    """A product that is quantised as it runs: DynamicQuantizeLinear and MatMulInteger."""
    x = (
        scope.pick(lambda t: t.dtype == FLOAT and t.rank == 2 and isinstance(t.dims[1], int))
        if scope.shared.steps and scope.opset >= 11
        else None
    )
    if x is None:
        return None
    n = scope.random.choice([3, 8])
    q, scale, zero = scope.put("DynamicQuantizeLinear", [x], [(UINT8, x.dims), (FLOAT, ()), (UINT8, ())])
    w, w_zero = scope.bytes_of((x.at(1), n), INT8), scope.constant(np.asarray(0, np.int8))
    whole = scope.one("MatMulInteger", [q, w, zero, w_zero], INT32, (x.dims[0], n))
    as_float = scope.one("Cast", [whole], FLOAT, whole.dims, to=FLOAT)
    factor = scope.one("Mul", [scale, scope.constant(np.asarray(0.05, np.float32))], FLOAT, ())
    return scope.one("Mul", [as_float, factor], FLOAT, whole.dims)


def narrow(scope: Scope) -> object:
    """A float tensor as float16 and back, around an operator."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1)
    if x is None:
        return None
    half = scope.one("Cast", [x], HALF, x.dims, to=HALF)
    half = scope.one(scope.random.choice(["Relu", "Sigmoid", "Identity"]), [half], HALF, x.dims)
    return scope.one("Cast", [half], FLOAT, x.dims, to=FLOAT)


COMPOSITES: tuple[Step, ...] = (
    gelu,
    swish,
    swish,
    norm,
    norm,
    softmax,
    attention,
    gated,
    rotary,
    quantised_pair,
    quantised_product,
    quantised_product,
    quantised_sum,
    dynamic_product,
    narrow,
)
