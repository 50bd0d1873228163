"""Kernels in C that are written here: where emx-onnx-cgen rounds otherwise than the operator's own runtime, or takes more memory or flash.

A template is a function of loops, as emx-onnx-cgen writes one: sizes are whole numbers in the text, and its parameters are the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from textwrap import indent
from typing import Any

import onnx
from onnx import helper, numpy_helper

from onnxtile.firmware.program import SCALES, ZEROS, DistinctKernel, StoredForm, TensorForm
from onnxtile.report.format import c_texts
from onnxtile.system.dataclass import dataclass

_C = c_texts("onnxtile.firmware", "kernels.c")
"""Texts in C, by name."""

HEAD = "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n#define idx_t int32_t\n"
"""What templates need where no kernel is by emx-onnx-cgen."""


_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class KernelText:
    """A kernel in C: helpers, in which `KERNEL` is the name of the function, and the body. Its parameters are the operands in use.

    Where it `has_axes`, each element is read and written by its indices along all axes, else by one index.
    """

    before: str
    body: str
    operands: tuple[str, ...]
    has_axes: bool = False


class _TemplateKernel:
    """A node with its operands and results by place."""

    def __init__(self, kernel: DistinctKernel) -> None:
        self.node = onnx.NodeProto.FromString(kernel.node)
        self.of_island = kernel.of_island
        self._forms = dict(kernel.tensors)
        self._fixed = dict(kernel.fixed)
        self.attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in self.node.attribute}

    def name(self, index: int) -> str:
        """Return the operand at `index`, empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def result(self, index: int) -> str:
        """Return the result at `index`, empty where it is left out."""
        return self.node.output[index] if index < len(self.node.output) else ""

    def form(self, name: str) -> TensorForm:
        """Return the type of an operand or result."""
        return self._forms[name]

    def numbers(self, index: int) -> list[int] | None:
        """Return the numbers of the operand at `index` where it says what is computed; None where it does not, or is left out."""
        tensor = self._fixed.get(self.name(index))
        return None if tensor is None else numpy_helper.to_array(onnx.TensorProto.FromString(tensor)).tolist()


def template_of(kernel: DistinctKernel) -> KernelText | None:
    """Return the text of `kernel`; None for one that is emx-onnx-cgen's."""
    if not kernel.node:
        return None
    if kernel.stored is not None:
        return UNPACKING[kernel.op_type].write(_TemplateKernel(kernel), _Weight(kernel.stored, kernel.tensors))
    make = _TEMPLATES.get(kernel.op_type)
    return None if make is None else make(_TemplateKernel(kernel))


def _filled(text: str, holes: Mapping[str, object]) -> str:
    for hole, value in holes.items():
        text = text.replace(f"${{{hole}}}", str(value))
    return text


# A sum of tensors in 8 bits, as onnxruntime computes it.
#
# By the documents (onnxruntime's docs/ContribOperators.md) it is (a_scale · (a - a_zero) + b_scale · (b - b_zero)) / c_scale + c_zero. Of
# 3.9 million pairs, emx-onnx-cgen's text rounds 8 otherwise than that in exact numbers, and onnxruntime 628. It multiplies by
# quotients of scales, and adds in one rounding each (`fmaf`, on processors that have it). A model in this operator was checked
# with onnxruntime, so its bytes are those of that kernel.


def _sum(kernel: _TemplateKernel) -> KernelText | None:
    """Return QLinearAdd of two tensors of one size; others, and islands, which round as floats do, are emx-onnx-cgen's."""
    names = [kernel.name(index) for index in range(8)]
    a, b, c = names[0], names[3], kernel.result(0)
    if kernel.of_island or not all(names) or not kernel.form(a).sizes == kernel.form(b).sizes == kernel.form(c).sizes:
        return None
    is_signed = kernel.form(c).dtype == onnx.TensorProto.INT8
    parts = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero", "c_scale", "c_zero")
    holes = {**dict(zip(parts, names, strict=True)), "c": c, "count": prod(kernel.form(c).sizes)}
    limits = (
        {"type": "int8_t", "low": "-128", "high": "127"}
        if is_signed
        else {"type": "uint8_t", "low": "0", "high": "255"}
    )
    return KernelText("", _filled(_C["sum"], holes | limits), tuple(dict.fromkeys((*names, c))))


# A layer of gated recurrent units: the state is in the result, and two or three rows of gates are beside it.

_USUAL = {"direction", "hidden_size"}
"""The attributes of a layer with its usual functions."""
_DIRECTIONS = {b"forward": "false", b"reverse": "true", b"bidirectional": "d == 1"}


def _gru(kernel: _TemplateKernel) -> KernelText | None:
    """Return a GRU of float32 with its usual functions, whose last state is a result; others are emx-onnx-cgen's.

    https://onnx.ai/onnx/operators/onnx__GRU.html has the formulas.
    """
    x, w, r, bias, lengths, first = (kernel.name(offset) for offset in range(6))
    rows, last = kernel.result(0), kernel.result(1)
    usual = _USUAL | {"linear_before_reset"}
    if not last or lengths or kernel.form(x).dtype != _FLOAT or not kernel.attributes.keys() <= usual:
        return None
    steps, batches, inputs = kernel.form(x).sizes
    directions, _, units = kernel.form(r).sizes
    after = bool(kernel.attributes.get("linear_before_reset", 0))
    biases = {f"bias_{gate}": "" for gate in "zqhr"}
    if bias:
        b = f"{bias}[d * 6 * {units} + i"
        biases = {
            "bias_z": f" + {b}] + {b} + 3 * {units}]",
            "bias_q": f" + {b} + {units}] + {b} + 4 * {units}]",
            "bias_h": f" + {b} + 2 * {units}]",
            "bias_r": f" + {b} + 5 * {units}]",
        }
    offset = f"(d * {batches} + batch) * {units}"
    holes = {
        **{"x": x, "w": w, "r": r, **biases},
        **{"steps": steps, "batches": batches, "inputs": inputs, "units": units},
        **{"directions": directions, "gates": 3 * units},
        "backwards": _DIRECTIONS[kernel.attributes.get("direction", b"forward")],
        "more": "" if after else f", next[{units}]",
        "next": "reset" if after else "next",
        "state": f"{last} + {offset}",
        "first": f"{first}[{offset} + i]" if first else "0.0f",
        "row": f"                memcpy({rows} + ((at * {directions} + d) * {batches} + batch) * {units}, state, {units} * sizeof(float));"
        if rows
        else "",
    }
    text = _filled(
        _C["gru"].replace("${candidate}", _C["reset_after"].rstrip("\n") if after else _C["reset_before"].rstrip("\n")),
        holes,
    )
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    operands = tuple(name for name in (x, w, r, bias, first, rows, last) if name)
    return KernelText(_C["dot"], "".join(lines), operands)


# A layer of long short-term memory. Of a way back, emx-onnx-cgen 1.4 stores the states in the order in which it computes them.


def _lstm(kernel: _TemplateKernel) -> KernelText | None:
    """Return an LSTM of float32 that runs backwards, with its usual functions; others are emx-onnx-cgen's.

    https://onnx.ai/onnx/operators/onnx__LSTM.html has the formulas.
    """
    x, w, r, bias, lengths, state, cell, peepholes = (kernel.name(offset) for offset in range(8))
    rows, last_state, last_cell = (kernel.result(offset) for offset in range(3))
    way, is_float = kernel.attributes.get("direction", b"forward"), kernel.form(x).dtype == _FLOAT
    if way == b"forward" or lengths or peepholes or not is_float or not kernel.attributes.keys() <= _USUAL:
        return None
    steps, batches, inputs = kernel.form(x).sizes
    directions, _, units = kernel.form(r).sizes
    offset, size = f"(d * {batches} + batch) * {units}", f"{units} * sizeof(float)"
    b = f"{bias}[d * 8 * {units} + i"
    holes = {
        **{"x": x, "w": w, "r": r, "bias": f"{b}] + {b} + 4 * {units}]" if bias else "0.0f"},
        **{"steps": steps, "batches": batches, "inputs": inputs, "units": units},
        **{"directions": directions, "gates": 4 * units, "backwards": _DIRECTIONS[way]},
        **{"state": f"{state}[{offset} + i]" if state else "0.0f", "cell": f"{cell}[{offset} + i]" if cell else "0.0f"},
        "row": f"                memcpy({rows} + ((at * {directions} + d) * {batches} + batch) * {units}, state, {size});"
        if rows
        else "",
        "last_state": f"            memcpy({last_state} + {offset}, state, {size});" if last_state else "",
        "last_cell": f"            memcpy({last_cell} + {offset}, cell, {size});" if last_cell else "",
    }
    lines = (line for line in _filled(_C["lstm"], holes).splitlines(keepends=True) if line.strip())
    operands = tuple(name for name in (x, w, r, bias, state, cell, rows, last_state, last_cell) if name)
    return KernelText(_C["dot"], "".join(lines), operands)


# A convolution over images. No condition is inside the innermost loop: the rows and columns of the kernel that are on the image are known
# before. Where an element of the result is a sum over many channels, that loop is over these.

_CTYPES: Mapping[int, str] = {
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.INT8: "int8_t",
    onnx.TensorProto.UINT8: "uint8_t",
}
_LIMITS: Mapping[int, tuple[str, str]] = {
    onnx.TensorProto.INT8: ("-128.0f", "127.0f"),
    onnx.TensorProto.UINT8: ("0.0f", "255.0f"),
}
_LEAST_DEPTH = 4
"""Channels from which the innermost loop is over them."""


def _as_image(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a tensor of rows as those of images of one row."""
    return (*sizes[:2], 1, sizes[2]) if len(sizes) == 3 else sizes


def _convolution(kernel: _TemplateKernel) -> KernelText | None:
    """Return a Conv or QLinearConv of one image or one row without dilation or automatic padding; others are emx-onnx-cgen's.

    QLinearConv is rounded as emx-onnx-cgen and onnxruntime do: the sum in 32 bits times x_scale · w_scale / y_scale, to the nearest even.
    """
    is_rounded = kernel.node.op_type == "QLinearConv"
    x, w, bias = (kernel.name(index) for index in ((0, 3, 8) if is_rounded else (0, 1, 2)))
    y = kernel.result(0)
    sizes, weights, result = (_as_image(kernel.form(name).sizes) for name in (x, w, y))
    attributes = kernel.attributes
    if len(sizes) != 4 or sizes[0] != 1 or kernel.form(x).dtype not in _CTYPES or kernel.form(y).dtype not in _CTYPES:
        return None
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or set(attributes.get("dilations", [1])) != {1}:
        return None
    rows, columns = [1, *attributes.get("strides", [1, 1])][-2:]
    pads = attributes.get("pads", [0] * 4)
    pads = pads if len(pads) == 4 else [0, pads[0], 0, pads[1]]
    holes: dict[str, object] = {
        **{"x": x, "w": w, "y": y, "x_type": _CTYPES[kernel.form(x).dtype], "w_type": _CTYPES[kernel.form(w).dtype]},
        **{"channels": result[1], "channels_of_group": result[1] // attributes.get("group", 1), "depth": weights[1]},
        **{"rows": sizes[2], "columns": sizes[3], "area": sizes[2] * sizes[3]},
        **{"kernel_rows": weights[2], "kernel_columns": weights[3], "kernel": weights[2] * weights[3]},
        **{"result_rows": result[2], "result_columns": result[3], "row_stride": rows, "column_stride": columns},
        **{"rows_before": pads[0], "columns_before": pads[1]},
        **{"sum_type": "float", "first": f"{bias}[o]" if bias else "0", "before": "", "stored": "sum"},
    }
    operands, low, high = [x, w, bias, y], "", ""
    if is_rounded:
        names = dict(
            zip(
                ("x_scale", "x_zero", "w_scale", "w_zero", "y_scale", "y_zero"),
                map(kernel.name, (1, 2, 4, 5, 6, 7)),
                strict=True,
            )
        )
        low, high = _LIMITS[kernel.form(y).dtype]
        each = {
            f"{name}_at": "o" if prod(kernel.form(names[name]).sizes) > 1 else "0" for name in ("w_zero", "w_scale")
        }
        holes |= {
            "sum_type": "int32_t",
            "stored": "KERNEL_rounded((float)sum * scale, zero)",
            "before": _C["rounded"],
            **names,
            **each,
        }
        operands += names.values()
    is_pointwise = weights[2:] == (1, 1) and not any(pads)
    is_deep = weights[1] >= _LEAST_DEPTH
    loops = "" if is_pointwise else _C["over_channels"].rstrip("\n") if is_deep else _C["over_columns"].rstrip("\n")
    pair = ("*a", "filter[c]") if is_pointwise else ("*a", "*b") if is_deep else ("a[l]", "b[l]")
    product = "({} - x_zero) * ({} - w_zero)" if is_rounded else "{} * {}"
    text = (_C["pointwise"] if is_pointwise else _C["convolution"]).replace("${loops}", loops)
    text = _filled(_filled(text, {"product": product.format(*pair), "before": holes.pop("before")}), holes)
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    helper = (
        _filled(_C["clamped"], {"type": _CTYPES[kernel.form(y).dtype], "low": low, "high": high}) if is_rounded else ""
    )
    return KernelText(helper, "".join(lines), tuple(dict.fromkeys(name for name in operands if name)))


# Kernels that unpack weights of few bits. Each weight is unpacked once where a loop over rows or over an image is innermost: the result is
# the sum so far, so nothing else is in memory.


class _Weight:
    """The element of stored weights at any index, as an expression in C; `helper` is what it calls, `operands` what it reads."""

    def __init__(self, form: StoredForm, tensors: Sequence[tuple[str, TensorForm]]) -> None:
        self._form, self._forms = form, dict(tensors)
        number = "(number ^ 8) - 8" if form.is_signed else "number"
        self.helper = _filled(_C["number"], {"number": number}) if form.bits == 4 else ""
        self.operands = (form.operand, SCALES, *([ZEROS] if ZEROS in self._forms else []))
        self.sizes = tuple(form.sizes[axis] for axis in form.order)
        self.is_half = self._forms[SCALES].dtype == onnx.TensorProto.FLOAT16

    def at(self, *indices: str) -> str:
        """Return the element at `indices`, of the axes as the kernel reads them."""
        form = self._form
        stored = [indices[form.order.index(axis)] for axis in range(len(form.sizes))]
        number = self._number(form.operand, _flat_index(stored, form.sizes))
        scale_index = "0"
        if form.axis is not None:
            inside = f"({stored[form.axis]}) / {form.block}" if form.block > 1 else stored[form.axis]
            sizes = self._forms[SCALES].sizes
            along = [inside if axis == form.axis else index for axis, index in enumerate(stored)]
            scale_index = inside if len(sizes) < len(stored) else _flat_index(along, sizes)
        zero = f" - {self._number(ZEROS, scale_index)}" if ZEROS in self._forms else ""
        product = f"(float)({number}{zero}) * {SCALES}[{scale_index}]"
        return f"(float)(_Float16)({product})" if self.is_half else product

    def _number(self, operand: str, index: str) -> str:
        return f"KERNEL_number({operand}, {index})" if self._form.bits == 4 else f"{operand}[{index}]"


def _flat_index(indices: Sequence[str], sizes: Sequence[int]) -> str:
    """Return the index of an element in memory by its indices along all axes."""
    flat = f"({indices[0]})"
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        flat = f"({flat} * {size} + ({index}))"
    return flat


def _unpacking_product(kernel: _TemplateKernel, weight: _Weight) -> KernelText:
    """Return a MatMul or Gemm by a matrix of stored weights."""
    x, bias, y = kernel.name(0), kernel.name(2), kernel.result(0)
    attributes = kernel.attributes
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    indices = ("j", "k") if attributes.get("transB", 0) else ("k", "j")
    depth, columns = (weight.sizes[indices.index(index)] for index in ("k", "j"))
    rows = prod(kernel.form(y).sizes) // columns
    first = "0.0f"
    if bias:
        sizes = (1, 1, *kernel.form(bias).sizes)[-2:]
        parts = [part for part, size in zip((f"i * {sizes[1]}", "j"), sizes, strict=True) if size > 1]
        first = f"{bias}[{' + '.join(parts) or '0'}]" + ("" if beta == 1.0 else f" * {beta!r}f")
    holes = {
        **{"x": x, "y": y, "rows": rows, "columns": columns, "depth": depth, "first": first},
        "x_at": f"k * {rows} + i" if attributes.get("transA", 0) else f"i * {depth} + k",
        "weight": weight.at(*indices) + ("" if alpha == 1.0 else f" * {alpha!r}f"),
    }
    operands = dict.fromkeys((x, *weight.operands, *([bias] if bias else []), y))
    text = _C["half_product"] if weight.is_half else _C["product"]
    return KernelText(weight.helper, _filled(text, holes), tuple(operands))


def _unpacking_convolution(kernel: _TemplateKernel, weight: _Weight) -> KernelText:
    """Return a Conv of rows, images or volumes by stored weights; a row is an image of one row, an image a volume of one plane."""
    x, bias, y = kernel.name(0), kernel.name(2), kernel.result(0)
    attributes, axes = kernel.attributes, len(weight.sizes) - 2
    sizes, result = kernel.form(x).sizes, kernel.form(y).sizes
    strides, dilations = (list(attributes.get(name, [1] * axes)) for name in ("strides", "dilations"))
    numbers = {
        **{"size": sizes[2:], "kernel": weight.sizes[2:], "result": result[2:]},
        **{"stride": strides, "dilation": dilations},
    }
    before = _pads_before(attributes, **numbers)
    holes = {
        **{"x": x, "y": y, "first": f"{bias}[o]" if bias else "0.0f"},
        **{"weight": weight.at("o", "c", *("m", "k", "l")[-axes:])},
        **{"batches": sizes[0], "image_channels": sizes[1], "channels": result[1], "depth": weight.sizes[1]},
        **{"channels_of_group": result[1] // attributes.get("group", 1)},
        **{"size": prod(sizes[2:]), "result_size": prod(result[2:])},
        **{f"before_{axis}": number for axis, number in enumerate((0, 0, *before)[-3:])},
        **{f"{name}_{axis}": each for name, row in numbers.items() for axis, each in enumerate((1, 1, *row)[-3:])},
    }
    operands = dict.fromkeys((x, *weight.operands, *([bias] if bias else []), y))
    text, depth = (_C["half_convolution"], 36) if weight.is_half else (_C["unpacking_convolution"], 28)
    text = text.replace("${along_row}", indent(_C["along_row"].rstrip("\n"), " " * depth))
    return KernelText(weight.helper, _filled(text, holes), tuple(operands))


def _pads_before(
    attributes: Mapping[str, Any],
    size: Sequence[int],
    kernel: Sequence[int],
    result: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Sequence[int]:
    """Return the padding before the first element on each axis. Of an automatic one, an odd element is after the last, or before.

    https://onnx.ai/onnx/operators/onnx__Conv.html
    """
    auto = attributes.get("auto_pad", b"NOTSET")
    if auto in {b"NOTSET", b"VALID"}:
        return [0] * len(size) if auto == b"VALID" else attributes.get("pads", [0] * 2 * len(size))[: len(size)]
    ends = zip(size, kernel, result, stride, dilation, strict=True)
    both = [max(0, (r - 1) * s + (k - 1) * d + 1 - n) for n, k, r, s, d in ends]
    return [pads // 2 if auto == b"SAME_UPPER" else pads - pads // 2 for pads in both]


def _unpacking_gather(kernel: _TemplateKernel, weight: _Weight) -> KernelText:
    """Return a Gather of rows of stored weights."""
    indices, y, sizes = kernel.name(1), kernel.result(0), weight.sizes
    axis = kernel.attributes.get("axis", 0) % len(sizes)
    places = ["taken"] * len(sizes)
    for axes, name in ((range(axis), "a"), (range(axis + 1, len(sizes)), "b")):
        for other in axes:
            inner = prod(sizes[other + 1 : axes.stop])
            places[other] = f"{name} / {inner} % {sizes[other]}" if len(axes) > 1 else name
    holes = {
        **{"indices": indices, "y": y, "count": prod(kernel.form(indices).sizes), "length": sizes[axis]},
        **{"before": prod(sizes[:axis]), "after": prod(sizes[axis + 1 :]), "weight": weight.at(*places)},
    }
    return KernelText(weight.helper, _filled(_C["gather"], holes), tuple(dict.fromkeys((*weight.operands, indices, y))))


# An Expand by the indices of all axes, so that it can read a growing state, whose rows are apart. That of emx-onnx-cgen reads one piece.


def _expand(kernel: _TemplateKernel) -> KernelText:
    """Return an Expand: an axis of one element, or one that the operand lacks, is read again and again."""
    x, y = kernel.name(0), kernel.result(0)
    read, written = kernel.form(x).sizes, kernel.form(y).sizes
    loops = [f"for (idx_t a{axis} = 0; a{axis} < {size}; ++a{axis})" for axis, size in enumerate(written)]
    to = "".join(f"[a{axis}]" for axis in range(len(written))) or "[0]"
    first = len(written) - len(read)
    indices = ("0" if size == 1 else f"a{first + axis}" for axis, size in enumerate(read))
    origin = "".join(f"[{index}]" for index in indices) or "[0]"
    return KernelText("", f"    {' '.join([*loops, f'{y}{to} = {x}{origin};'])}\n", (x, y), has_axes=True)


def _backward_slice(kernel: _TemplateKernel) -> KernelText | None:
    """Return a Slice that reads an axis backwards, as flips are; emx-onnx-cgen has the others alone."""
    starts, axes, steps = (kernel.numbers(index) for index in (1, 3, 4))
    if starts is None or steps is None or min(steps) > 0 or (axes is None and kernel.name(3)):
        return None
    x, y = kernel.name(0), kernel.result(0)
    read, written = kernel.form(x).sizes, kernel.form(y).sizes
    indices = [f"a{axis}" for axis in range(len(read))]
    for start, axis, step in zip(starts, range(len(starts)) if axes is None else axes, steps, strict=True):
        size = read[axis]
        first = min(max(start + size if start < 0 else start, 0), size - 1 if step < 0 else size)
        indices[axis] = f"{first} + {step} * {indices[axis]}"
    loops = [f"for (idx_t a{axis} = 0; a{axis} < {size}; ++a{axis})" for axis, size in enumerate(written)]
    to, origin = (
        "".join(f"[{index}]" for index in row) for row in ([f"a{axis}" for axis in range(len(read))], indices)
    )
    return KernelText("", f"    {' '.join([*loops, f'{y}{to} = {x}{origin};'])}\n", (x, y), has_axes=True)


def _einsum(kernel: _TemplateKernel) -> KernelText | None:
    """Return an Einsum of floats whose equation names every axis: a sum of products; emx-onnx-cgen has some with further axes."""
    operands, y = [kernel.name(index) for index in range(len(kernel.node.input))], kernel.result(0)
    read, _, written = kernel.attributes["equation"].decode().replace(" ", "").partition("->")
    letters = read.split(",")
    if "->" not in kernel.attributes["equation"].decode() or "." in read or kernel.form(y).dtype != _FLOAT:
        return None
    sizes: dict[str, int] = {}
    for axes, operand in zip(letters, operands, strict=True):
        for letter, size in zip(axes, kernel.form(operand).sizes, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 0))

    def element(operand: str, axes: str) -> str:
        shape = kernel.form(operand).sizes
        indices = ("0" if size < sizes[axis] else f"n_{axis}" for axis, size in zip(axes, shape, strict=True))
        return operand + ("".join(f"[{index}]" for index in indices) or "[0]")

    def over(axes: Iterable[str]) -> str:
        return " ".join(f"for (idx_t n_{axis} = 0; n_{axis} < {sizes[axis]}; ++n_{axis})" for axis in axes)

    product = " * ".join(element(operand, axes) for operand, axes in zip(operands, letters, strict=True))
    body = f"""    {over(written)} {{
        float sum = 0.0f;
        {over(axis for axis in sizes if axis not in written)} sum += {product};
        {element(y, written)} = sum;
    }}
"""
    return KernelText("", body, (*dict.fromkeys(operands), y), has_axes=True)


_TEMPLATES: Mapping[str, Callable[[_TemplateKernel], KernelText | None]] = {
    **{"Conv": _convolution, "QLinearConv": _convolution},
    **{"Einsum": _einsum, "Expand": _expand, "GRU": _gru, "LSTM": _lstm, "QLinearAdd": _sum},
    "Slice": _backward_slice,
}


@dataclass(frozen=True)
class Unpacking:
    """A template that unpacks the weights at input `index`, where these have one of the numbers of `axes`."""

    write: Callable[[_TemplateKernel, _Weight], KernelText]
    axes: Sequence[int]
    index: int = 1


UNPACKING: Mapping[str, Unpacking] = {
    **dict.fromkeys(("MatMul", "Gemm"), Unpacking(_unpacking_product, (2,))),
    "Conv": Unpacking(_unpacking_convolution, (3, 4, 5)),
    "Gather": Unpacking(_unpacking_gather, range(1, 9), index=0),
}
