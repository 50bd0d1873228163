"""Single operators that a random graph may hold. Each takes what fits from the scope; one that finds nothing adds nothing."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graphs import movements
from tests.random_graphs.picks import MOST, Step, is_float, picture, real
from tests.random_graphs.scope import BOOL, BRAIN, FLOAT, FLOATS, HALF, INT8, INT32, INT64, UINT8, Scope, Tensor


def unary(scope: Scope) -> object:
    """An elementwise operator of one operand."""
    x = real(scope)
    if x is None:
        return None
    ops = ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "LeakyRelu", "Softplus", "HardSigmoid", "Elu", "Selu"]
    if x.dtype == FLOAT:
        ops += ["Erf"] * (scope.opset >= 9) + ["Sin", "Cos", "Softsign"] + ["ThresholdedRelu"] * (scope.opset >= 10)
    if x.dtype == HALF:
        ops = ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "LeakyRelu"]
    ops += ["HardSwish"] * (scope.opset >= 14 and x.dtype == FLOAT) + ["Gelu"] * (
        scope.opset >= 20 and x.dtype == FLOAT
    )
    op = scope.random.choice(ops)
    more = {"alpha": 0.25} if op == "LeakyRelu" and scope.chance(0.5) else {}
    return scope.one(op, [x], x.dtype, x.dims, **more)


def clip(scope: Scope) -> object:
    """Clip with both bounds, or one."""
    x = real(scope)
    if x is None:
        return None
    if scope.opset < 11:
        return scope.one("Clip", [x], x.dtype, x.dims, min=-1.5, max=2.0) if x.dtype == FLOAT else None
    low = scope.constant(np.asarray(-1.5, np.float32), x.dtype)
    high = scope.constant(np.asarray(2, np.float32), x.dtype)
    bounds: list[list[Tensor | str]] = [[low, high], ["", high], [low]]
    return scope.one("Clip", [x, *scope.random.choice(bounds)], x.dtype, x.dims)


def binary(scope: Scope) -> object:
    """An elementwise operator of two operands, which are broadcast now and then."""
    x = real(scope)
    if x is None:
        return None
    same = scope.pick(lambda t: t.dtype == x.dtype and t.dims == x.dims, recent=False)
    tail = [
        dim if isinstance(dim, int) and scope.chance(0.7) else 1 for dim in x.dims[scope.random.randint(0, x.rank) :]
    ]
    other = same if same is not None and scope.chance(0.7) else scope.weight(tail, x.dtype)
    ops = ["Add", "Add", "Mul", "Mul", "Sub", "Max", "Min", "Div", "Sum", "Mean", "PRelu"]
    op = scope.random.choice(ops if scope.opset >= 8 else ["Add", "Mul", "Sub", "Div"])
    if op == "Div":
        other = scope.weight(tail, x.dtype, positive=True)
    if op == "PRelu":
        return scope.one(op, [x, scope.weight(tail, x.dtype)], x.dtype, x.dims)
    operands = [x, other]
    if op in {"Add", "Mul", "Max", "Sum"} and scope.chance(0.4):
        operands.reverse()
    if op in {"Sum", "Max", "Mean"} and scope.chance(0.4):
        operands.append(x)
    return scope.one(op, operands, x.dtype, x.dims)


def power(scope: Scope) -> object:
    """A square, or a root of what is not negative."""
    x = real(scope)
    if x is None:
        return None
    if scope.chance(0.5):
        return (
            scope.one(
                "Pow",
                [x, scope.number(2, x.dtype if scope.opset < 12 or scope.chance(0.7) else FLOAT)],
                x.dtype,
                x.dims,
            )
            if x.rank
            else None
        )
    return scope.one("Sqrt", [scope.one("Abs", [x], x.dtype, x.dims)], x.dtype, x.dims)


def chosen(scope: Scope) -> object:
    """A comparison, and Where."""
    x = real(scope)
    other = x and scope.pick(lambda t: t.dtype == x.dtype and t.dims == x.dims, recent=False)
    if x is None or other is None or not scope.shared.steps or scope.opset < 9:
        return None
    made = scope.one(scope.random.choice(["Less", "Greater"]), [x, other], BOOL, x.dims)
    if scope.chance(0.3):
        made = scope.one("Not", [made], BOOL, x.dims)
    return (
        scope.one("Where", [made, x, other if scope.chance(0.5) else scope.number(0, x.dtype)], x.dtype, x.dims)
        if x.rank
        else None
    )


def reduced(scope: Scope) -> object:
    """A reduction of one axis or two, whose axes are an attribute or an input, as the opset says."""
    x = real(scope, 1)
    if x is None:
        return None
    op = scope.random.choice(["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceMean"])
    axes = sorted(scope.random.sample(range(x.rank), min(x.rank, scope.random.choice([1, 1, 2]))))
    keep = scope.chance(0.6)
    dims = [1 if i in axes else dim for i, dim in enumerate(x.dims) if keep or i not in axes]
    given = [axis - x.rank if scope.chance(0.3) else axis for axis in axes]
    as_input = scope.opset >= (13 if op == "ReduceSum" else 18)
    inputs, more = ([x, scope.ints(*given)], {}) if as_input else ([x], {"axes": given})
    return scope.one(op, inputs, x.dtype, dims, keepdims=int(keep), **more)


def softmax(scope: Scope) -> object:
    """Softmax along an axis."""
    x = real(scope, 1)
    if x is None:
        return None
    axis = scope.random.choice([-1, scope.random.randrange(x.rank)])
    return scope.one(scope.random.choice(["Softmax", "Softmax", "LogSoftmax"]), [x], x.dtype, x.dims, axis=axis)


def product(scope: Scope) -> object:
    """MatMul or Gemm with a weight, or MatMul of two tensors that fit."""
    x = scope.pick(lambda t: is_float(t) and t.rank >= 2 and isinstance(t.dims[-1], int))
    if x is None:
        return None
    k, n = x.at(-1), scope.random.choice([1, 3, 4, 7, 8, 16])
    if x.rank == 2 and scope.chance(0.4):
        turned = scope.chance(0.5)
        w = scope.weight((n, k) if turned else (k, n), x.dtype)
        bias = (
            [scope.weight(scope.random.choice([(n,), (1, n)]), x.dtype)]
            if scope.chance(0.6) or scope.opset < 11
            else []
        )
        return scope.one("Gemm", [x, w, *bias], x.dtype, (x.dims[0], n), **({"transB": 1} if turned else {}))
    fit = scope.pick(lambda t: t.dtype == x.dtype and t.rank == 2 and t.dims[0] == k and isinstance(t.dims[1], int))
    other = fit if fit is not None and scope.chance(0.4) else scope.weight((k, n), x.dtype)
    made = scope.one("MatMul", [x, other], x.dtype, (*x.dims[:-1], other.dims[-1]))
    if scope.chance(0.5):
        made = scope.one("Add", [made, scope.weight((other.at(-1),), x.dtype)], x.dtype, made.dims)
    return made


def convolution(scope: Scope) -> object:
    """A convolution over an image, dense, depthwise or pointwise, with batch normalisation and an activation now and then."""
    x = picture(scope, 3)
    if x is None or x.size > MOST // 2:
        return None
    channels = x.at(1)
    kind = scope.random.choice(["dense", "depthwise", "pointwise", "up"])
    if kind == "up":
        w = scope.weight((channels, 4, 2, 2))
        return scope.one("ConvTranspose", [x, w], FLOAT, (x.dims[0], 4, x.at(2) * 2, x.at(3) * 2), strides=[2, 2])
    size = 1 if kind == "pointwise" else 3
    group, filters = (channels, channels) if kind == "depthwise" else (1, scope.random.choice([4, 5, 8]))
    w = scope.weight((filters, channels // group, size, size))
    stride = scope.random.choice([1, 1, 2])
    pad = size // 2 if scope.chance(0.7) else 0
    dims = (x.dims[0], filters, *((x.at(i) + 2 * pad - size) // stride + 1 for i in (2, 3)))
    bias = [scope.weight((filters,))] if scope.chance(0.5) else []
    made = scope.one("Conv", [x, w, *bias], FLOAT, dims, pads=[pad] * 4, strides=[stride] * 2, group=group)
    if scope.chance(0.3):
        scale, mean = scope.weight((filters,)), scope.weight((filters,))
        variance = scope.weight((filters,), positive=True)
        made = scope.one("BatchNormalization", [made, scale, mean, mean, variance], FLOAT, dims)
    return scope.one("Relu", [made], FLOAT, dims) if scope.chance(0.5) else made


def pool(scope: Scope) -> object:
    """A pool over an image."""
    x = picture(scope, 2)
    if x is None:
        return None
    if scope.chance(0.3):
        return scope.one("GlobalAveragePool", [x], FLOAT, (*x.dims[:2], 1, 1))
    dims = (*x.dims[:2], (x.at(2) - 2) // 2 + 1, (x.at(3) - 2) // 2 + 1)
    op = scope.random.choice(["MaxPool", "AveragePool"])
    return scope.one(op, [x], FLOAT, dims, kernel_shape=[2, 2], strides=[2, 2])


def normalised(scope: Scope) -> object:
    """A normalisation that is one operator."""
    x = scope.pick(
        lambda t: t.dtype == FLOAT and t.rank >= 2 and isinstance(t.dims[-1], int) and isinstance(t.dims[1], int)
    )
    if x is None:
        return None
    if scope.opset >= 17 and scope.chance(0.6):
        scale, bias = scope.weight((x.at(-1),)), scope.weight((x.at(-1),))
        return scope.one("LayerNormalization", [x, scale, bias][: scope.random.choice([2, 3])], FLOAT, x.dims, axis=-1)
    if x.rank < 3:
        return None
    return scope.one("InstanceNormalization", [x, scope.weight((x.at(1),)), scope.weight((x.at(1),))], FLOAT, x.dims)


def cast(scope: Scope) -> object:
    """A change of the element type."""
    x = scope.pick(lambda t: t.dtype in (*FLOATS, INT64, INT32, BOOL))
    if x is None:
        return None
    wanted = scope.random.choice([FLOAT, FLOAT, HALF, BRAIN if scope.opset >= 13 else HALF])
    if scope.shared.steps and scope.chance(0.2):
        wanted = scope.random.choice([INT64, INT32])
    if x.dtype == BRAIN:
        wanted = FLOAT
    if {x.dtype, wanted} == {BRAIN, HALF} or (
        wanted in (HALF, BRAIN) and not scope.shared.steps and x.dtype == FLOAT and scope.chance(0.5)
    ):
        return None
    return scope.one("Cast", [x], wanted, x.dims, to=wanted)


def brain(scope: Scope) -> object:
    """A movement of bfloat16 numbers, which no kernel computes with."""
    x = scope.pick(lambda t: t.dtype == BRAIN and t.rank >= 1)
    if x is None:
        return None
    return scope.one("Identity", [x], BRAIN, x.dims) if scope.opset >= 13 else None


def sizes(scope: Scope) -> object:
    """Shape of a tensor, a part of it, and a Reshape by it."""
    x = scope.pick(lambda t: is_float(t) and t.rank >= 2)
    if x is None:
        return None
    found = scope.one("Shape", [x], INT64, (x.rank,))
    if any(isinstance(dim, str) for dim in x.dims[1:]):
        return None
    first = scope.one("Gather", [found, scope.ints(0)], INT64, (1,))
    joined_sizes = scope.one(
        "Concat", [first, scope.ints(math.prod(x.at(i) for i in range(1, x.rank)))], INT64, (2,), axis=0
    )
    return scope.one("Reshape", [x, joined_sizes], x.dtype, (x.dims[0], math.prod(x.at(i) for i in range(1, x.rank))))


def largest(scope: Scope) -> object:
    """TopK, ArgMax or CumSum."""
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1 and isinstance(t.dims[-1], int) and t.dims[-1] >= 1)
    if x is None:
        return None
    if scope.chance(0.4):
        if scope.opset < 11:
            return None
        return scope.one("CumSum", [x, scope.constant(np.asarray(x.rank - 1, np.int64))], FLOAT, x.dims)
    if not scope.shared.steps:
        return None
    if scope.chance(0.5):
        return scope.one("ArgMax", [x], INT64, x.dims[:-1], axis=-1, keepdims=0)
    k = scope.random.randint(1, x.at(-1))
    dims = (*x.dims[:-1], k)
    if scope.opset < 10:
        return scope.put("TopK", [x], [(FLOAT, dims), (INT64, dims)], axis=-1, k=k)
    return scope.put("TopK", [x, scope.ints(k)], [(FLOAT, dims), (INT64, dims)], axis=-1)


def dropout(scope: Scope) -> object:
    """Dropout, which passes its operand on, with its mask now and then."""
    x = scope.pick(lambda t: t.dtype == FLOAT)
    if x is None:
        return None
    results = [(FLOAT, x.dims), (BOOL if scope.opset >= 10 else FLOAT, x.dims)][: scope.random.choice([1, 1, 2])]
    return scope.put("Dropout", [x], results)


def integers(scope: Scope) -> object:
    """Arithmetic of integers."""
    x = scope.pick(lambda t: t.dtype in (INT64, INT32) and not t.constant)
    if x is None:
        return None
    kind = np.int64 if x.dtype == INT64 else np.int32
    other = scope.constant(np.asarray(scope.random.randint(1, 3), kind))
    return scope.one(scope.random.choice(["Add", "Mul", "Sub"]), [x, other], x.dtype, x.dims)


def eight_bits(scope: Scope) -> object:
    """A movement of 8-bit integers."""
    x = scope.pick(lambda t: t.dtype in (UINT8, INT8) and t.rank >= 1)
    if x is None:
        return None
    return scope.one(
        scope.random.choice(["Identity", "Relu" if x.dtype == INT8 and scope.opset >= 14 else "Identity"]),
        [x],
        x.dtype,
        x.dims,
    )


STEPS: tuple[Step, ...] = (
    unary,
    unary,
    unary,
    binary,
    binary,
    binary,
    clip,
    power,
    chosen,
    reduced,
    reduced,
    softmax,
    product,
    product,
    product,
    convolution,
    convolution,
    pool,
    normalised,
    movements.transposed,
    movements.transposed,
    movements.reshaped,
    movements.reshaped,
    movements.split,
    movements.sliced,
    movements.sliced,
    movements.joined,
    movements.joined,
    movements.joined,
    movements.padded,
    movements.image,
    cast,
    brain,
    sizes,
    largest,
    dropout,
    integers,
    eight_bits,
)
