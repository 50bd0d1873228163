"""Operators that move numbers: other shapes, parts, joins, copies. Each takes what fits from the scope."""

from __future__ import annotations

import math

import numpy as np

from tests.random_graphs.picks import MOST, picture, real
from tests.random_graphs.scope import BOOL, FLOAT, Scope, Tensor


def transposed(scope: Scope) -> object:
    """Transpose of any tensor, with or without an order of the axes."""
    x = scope.pick(lambda t: t.rank >= 2)
    if x is None or x.dtype == BOOL:
        return None
    perm = list(range(x.rank))[::-1] if scope.chance(0.3) else scope.random.sample(range(x.rank), x.rank)
    more = {} if perm == list(range(x.rank))[::-1] and scope.chance(0.5) else {"perm": perm}
    return scope.one("Transpose", [x], x.dtype, [x.dims[i] for i in perm], **more)


def reshaped(scope: Scope) -> object:
    """Another shape: Reshape, Flatten, Squeeze, Unsqueeze."""
    x = scope.pick(lambda t: t.rank >= 1 and t.dtype != BOOL)
    if x is None:
        return None
    kind = scope.random.choice(["Reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze"])
    if kind == "Flatten" and scope.opset < 9 and x.dtype != FLOAT:
        return None
    if kind == "Unsqueeze":
        axis = scope.random.randint(0, x.rank)
        dims = (*x.dims[:axis], 1, *x.dims[axis:])
        return _with_axes(scope, kind, x, axis, dims) if x.rank < 5 else None
    if kind == "Squeeze":
        axes = [i for i, dim in enumerate(x.dims) if dim == 1]
        axis = scope.random.choice(axes) if axes else -1
        return _with_axes(scope, kind, x, axis, (*x.dims[:axis], *x.dims[axis + 1 :])) if axes else None
    if kind == "Flatten":
        if not x.is_static:
            return (
                scope.one(kind, [x], x.dtype, (x.dims[0], math.prod(x.dims[1:])), axis=1)
                if all(isinstance(d, int) for d in x.dims[1:])
                else None
            )
        axis = scope.random.randint(0, x.rank)
        return scope.one(kind, [x], x.dtype, (math.prod(x.dims[:axis]), math.prod(x.dims[axis:])), axis=axis)
    if any(isinstance(dim, str) for dim in x.dims[1:]):
        return None
    rest = math.prod(x.at(i) for i in range(1, x.rank))
    if isinstance(x.dims[0], str):
        return scope.one(kind, [x, scope.ints(0, rest)], x.dtype, (x.dims[0], rest))
    size = x.at(0) * rest
    first = scope.random.choice([d for d in range(1, min(size, 12) + 1) if size % d == 0] or [size])
    wanted = scope.random.choice([[size], [first, size // first], [1, first, size // first], [first, 1, size // first]])
    free = [
        -1 if dim == wanted[-1] and i == len(wanted) - 1 and scope.chance(0.4) and size else dim
        for i, dim in enumerate(wanted)
    ]
    return scope.one(kind, [x, scope.ints(*free)], x.dtype, wanted)


def _with_axes(scope: Scope, op: str, x: Tensor, axis: int, dims: tuple[int | str, ...]) -> Tensor:
    if scope.opset >= 13:
        return scope.one(op, [x, scope.ints(axis)], x.dtype, dims)
    return scope.one(op, [x], x.dtype, dims, axes=[axis])


def split(scope: Scope) -> object:
    """Split into two or three parts, equal or not."""
    x = scope.pick(lambda t: t.rank >= 1 and t.dtype != BOOL and any(isinstance(d, int) and d >= 2 for d in t.dims))
    if x is None:
        return None
    axis = scope.random.choice([i for i, d in enumerate(x.dims) if isinstance(d, int) and d >= 2])
    size = x.at(axis)
    cut = scope.random.randint(1, size - 1)
    sizes = [cut, size - cut]
    if sizes[1] > 1 and scope.chance(0.3):
        sizes = [cut, 1, size - cut - 1]
    results = [(x.dtype, (*x.dims[:axis], part, *x.dims[axis + 1 :])) for part in sizes]
    if scope.opset >= 13:
        return scope.put("Split", [x, scope.ints(*sizes)], results, axis=axis)
    return scope.put("Split", [x], results, axis=axis, split=sizes)


def sliced(scope: Scope) -> object:
    """Slice of one axis."""
    x = scope.pick(lambda t: t.rank >= 1 and t.dtype != BOOL and any(isinstance(d, int) and d >= 2 for d in t.dims))
    if x is None:
        return None
    axis = scope.random.choice([i for i, d in enumerate(x.dims) if isinstance(d, int) and d >= 2])
    size = x.at(axis)
    start = scope.random.randrange(size)
    end = scope.random.randint(start + 1, size)
    step = scope.random.choice([1, 1, 1, 2])
    dims = (*x.dims[:axis], -(-(end - start) // step), *x.dims[axis + 1 :])
    stop = scope.random.choice([end, 2**31]) if end == size else end
    if scope.opset < 10:
        return scope.one("Slice", [x], x.dtype, dims, starts=[start], ends=[stop], axes=[axis]) if step == 1 else None
    given = [scope.ints(start), scope.ints(stop), scope.ints(axis)]
    return scope.one("Slice", [x, *given, *([scope.ints(step)] if step > 1 else [])], x.dtype, dims)


def joined(scope: Scope) -> object:
    """Concat of two or three tensors, one of them twice now and then."""
    x = scope.pick(lambda t: t.rank >= 1 and t.dtype != BOOL and t.size <= MOST // 4)
    if x is None:
        return None
    axes = [i for i, dim in enumerate(x.dims) if isinstance(dim, int)]
    if not axes:
        return None
    axis = scope.random.choice(axes)

    def fits(t: Tensor) -> bool:
        if t.dtype != x.dtype or t.rank != x.rank or t.size > MOST // 4:
            return False
        return (
            isinstance(t.dims[axis], int) and t.dims[:axis] + t.dims[axis + 1 :] == x.dims[:axis] + x.dims[axis + 1 :]
        )

    others = [scope.pick(fits, recent=False) for _ in range(scope.random.choice([1, 1, 2]))]
    parts = [x, *(one for one in others if one is not None)]
    size = sum(part.at(axis) for part in parts)
    return scope.one("Concat", parts, x.dtype, (*x.dims[:axis], size, *x.dims[axis + 1 :]), axis=axis)


def padded(scope: Scope) -> object:
    """Pad, Expand, Tile or Gather."""
    x = real(scope, 1, static=True)
    if x is None or x.size > MOST // 8:
        return None
    kind = scope.random.choice(["Pad", "Expand", "Tile", "Gather"])
    if kind == "Pad":
        before = [scope.random.randint(0, 1) for _ in x.dims]
        after = [scope.random.randint(0, 2) for _ in x.dims]
        dims = [x.at(i) + before[i] + after[i] for i in range(x.rank)]
        if scope.opset < 11:
            return scope.one("Pad", [x], x.dtype, dims, pads=[*before, *after]) if x.dtype == FLOAT else None
        return scope.one("Pad", [x, scope.ints(*before, *after)], x.dtype, dims) if x.dtype == FLOAT else None
    if kind == "Expand" and scope.opset < 8:
        return None
    if kind == "Expand":
        return (
            scope.one("Expand", [x, scope.ints(2, *(1 for _ in x.dims))], x.dtype, (2, *x.dims)) if x.rank < 5 else None
        )
    if kind == "Tile":
        return scope.one("Tile", [x, scope.ints(*(2, *(1,) * (x.rank - 1)))], x.dtype, (x.at(0) * 2, *x.dims[1:]))
    axis = scope.random.randrange(x.rank)
    if not x.at(axis):
        return None
    indices = [scope.random.randrange(x.at(axis)) for _ in range(scope.random.choice([1, 2, 3]))]
    if scope.chance(0.3):
        return scope.one(
            "Gather",
            [x, scope.constant(np.asarray(indices[0], np.int64))],
            x.dtype,
            (*x.dims[:axis], *x.dims[axis + 1 :]),
            axis=axis,
        )
    return scope.one(
        "Gather", [x, scope.ints(*indices)], x.dtype, (*x.dims[:axis], len(indices), *x.dims[axis + 1 :]), axis=axis
    )


def image(scope: Scope) -> object:
    """Resize, DepthToSpace or SpaceToDepth of an image."""
    x = picture(scope)
    if x is None or x.size > MOST // 8:
        return None
    kind = scope.random.choice(["Resize", "DepthToSpace", "SpaceToDepth"])
    n, (c, h, w) = x.dims[0], (x.at(i) for i in (1, 2, 3))
    if kind == "Resize" and scope.opset < 11:
        return _enlarged(scope, x, (n, c, h * 2, w * 2))
    if kind == "Resize":
        scales = scope.constant(np.asarray([1, 1, 2, 2], np.float32))
        regions = scope.constant(np.asarray([], np.float32)) if scope.opset < 13 else ""
        return scope.one(
            kind, [x, regions, scales], FLOAT, (n, c, h * 2, w * 2), mode=scope.random.choice(["nearest", "linear"])
        )
    if kind == "DepthToSpace":
        return scope.one(kind, [x], FLOAT, (n, c // 4, h * 2, w * 2), blocksize=2) if c % 4 == 0 else None
    return scope.one(kind, [x], FLOAT, (n, c * 4, h // 2, w // 2), blocksize=2) if h % 2 == 0 and w % 2 == 0 else None


def _enlarged(scope: Scope, x: Tensor, dims: tuple[int | str, ...]) -> Tensor:
    """Add the operator that enlarged an image before opset 11."""
    mode, scales = scope.random.choice(["nearest", "linear"]), [1.0, 1.0, 2.0, 2.0]
    if scope.opset < 9:
        return scope.one("Upsample", [x], FLOAT, dims, mode=mode, scales=scales)
    given = scope.constant(np.asarray(scales, np.float32))
    return scope.one("Resize" if scope.opset == 10 else "Upsample", [x, given], FLOAT, dims, mode=mode)
