"""Kernels in C that are written here: where emx-onnx-cgen rounds otherwise than the operator's own runtime, or takes more memory.

A template is a function of loops, as emx-onnx-cgen writes one: sizes are whole numbers in the text, and its parameters are the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from onnxtile.firmware.program import DistinctKernel, TensorForm

HEAD = "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n\n#define idx_t int32_t\n"
"""What templates need where no kernel is by emx-onnx-cgen."""


@dataclass(frozen=True)
class KernelText:
    """A kernel in C: helpers, in which `KERNEL` is the name of the function, and the body. Its parameters are the operands in use."""

    before: str
    body: str
    operands: tuple[str, ...]


class _Kernel:
    """A node with its operands and results by place."""

    def __init__(self, kernel: DistinctKernel) -> None:
        self.node = onnx.NodeProto.FromString(kernel.node)
        self.of_island = kernel.of_island
        self._forms = dict(kernel.tensors)
        self.attributes = {one.name: helper.get_attribute_value(one) for one in self.node.attribute}

    def name(self, place: int) -> str:
        """Return the operand at `place`, empty where it is left out."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def result(self, place: int) -> str:
        """Return the result at `place`, empty where it is left out."""
        return self.node.output[place] if place < len(self.node.output) else ""

    def form(self, name: str) -> TensorForm:
        """Return the type of an operand or result."""
        return self._forms[name]


def template_of(kernel: DistinctKernel) -> KernelText | None:
    """Return the text of `kernel`; None for one that is emx-onnx-cgen's."""
    if not kernel.node:
        return None
    make = _TEMPLATES.get(kernel.op_type)
    return None if make is None else make(_Kernel(kernel))


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

_SUM = """\
    const float ratio_a = ${a_scale}[0] / ${c_scale}[0], ratio_b = ${b_scale}[0] / ${c_scale}[0];
    const float fixed = (float)${c_zero}[0] - fmaf(ratio_a, (float)${a_zero}[0], ratio_b * (float)${b_zero}[0]);
    for (idx_t i = 0; i < ${count}; ++i) {
        const float sum = nearbyintf(fmaf((float)${a}[i], ratio_a, fmaf((float)${b}[i], ratio_b, fixed)));
        ${c}[i] = (${type})(sum < ${low}.0f ? ${low}.0f : sum > ${high}.0f ? ${high}.0f : sum);
    }
"""


def _sum(kernel: _Kernel) -> KernelText | None:
    """Return QLinearAdd of two tensors of one size; others, and islands, which round as floats do, are emx-onnx-cgen's."""
    names = [kernel.name(place) for place in range(8)]
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
    return KernelText("", _filled(_SUM, holes | limits), tuple(dict.fromkeys((*names, c))))


# A layer of gated recurrent units: the state is in the result, and two or three rows of gates are beside it.

_DOT = """\
static float KERNEL_dot(const float *a, const float *b, idx_t count, float sum) {
    for (idx_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}
static float KERNEL_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
"""
_GRU = """\
    for (idx_t d = 0; d < ${directions}; ++d) {
        const bool is_backwards = ${backwards};
        const float *const w = ${w} + d * ${gates} * ${inputs};
        const float *const r = ${r} + d * ${gates} * ${units};
        for (idx_t batch = 0; batch < ${batches}; ++batch) {
            float update[${units}], reset[${units}]${more};
            float *const state = ${state};
            for (idx_t i = 0; i < ${units}; ++i) state[i] = ${first};
            for (idx_t step = 0; step < ${steps}; ++step) {
                const idx_t at = is_backwards ? ${steps} - 1 - step : step;
                const float *const x = ${x} + (at * ${batches} + batch) * ${inputs};
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + ${units};
                    float z = 0.0f, q = 0.0f;
                    for (idx_t k = 0; k < ${inputs}; ++k) {
                        z += x[k] * w[i * ${inputs} + k];
                        q += x[k] * w[j * ${inputs} + k];
                    }
                    for (idx_t k = 0; k < ${units}; ++k) {
                        z += state[k] * r[i * ${units} + k];
                        q += state[k] * r[j * ${units} + k];
                    }
                    update[i] = KERNEL_sigmoid(z${bias_z});
                    reset[i] = KERNEL_sigmoid(q${bias_q});
                }
${candidate}
                for (idx_t i = 0; i < ${units}; ++i) state[i] = (1.0f - update[i]) * tanhf(${next}[i]) + update[i] * state[i];
${row}
            }
        }
    }
"""
_RESET_AFTER = """\
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + 2 * ${units};
                    const float recurrent = KERNEL_dot(state, r + j * ${units}, ${units}, 0.0f)${bias_r};
                    reset[i] = KERNEL_dot(x, w + j * ${inputs}, ${inputs}, 0.0f) + reset[i] * recurrent${bias_h};
                }"""
_RESET_BEFORE = """\
                for (idx_t i = 0; i < ${units}; ++i) reset[i] *= state[i];
                for (idx_t i = 0; i < ${units}; ++i) {
                    const idx_t j = i + 2 * ${units};
                    const float seen = KERNEL_dot(x, w + j * ${inputs}, ${inputs}, 0.0f);
                    next[i] = KERNEL_dot(reset, r + j * ${units}, ${units}, seen)${bias_h}${bias_r};
                }"""
_DIRECTIONS = {b"forward": "false", b"reverse": "true", b"bidirectional": "d == 1"}


def _gru(kernel: _Kernel) -> KernelText | None:
    """Return a GRU of float32 with its usual functions, whose last state is a result; others are emx-onnx-cgen's.

    https://onnx.ai/onnx/operators/onnx__GRU.html has the formulas.
    """
    x, w, r, bias, lengths, first = (kernel.name(place) for place in range(6))
    rows, last = kernel.result(0), kernel.result(1)
    usual = {"direction", "hidden_size", "linear_before_reset"}
    if not last or lengths or kernel.form(x).dtype != onnx.TensorProto.FLOAT or not kernel.attributes.keys() <= usual:
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
    place = f"(d * {batches} + batch) * {units}"
    holes = {
        **{"x": x, "w": w, "r": r, **biases},
        **{"steps": steps, "batches": batches, "inputs": inputs, "units": units},
        **{"directions": directions, "gates": 3 * units},
        "backwards": _DIRECTIONS[kernel.attributes.get("direction", b"forward")],
        "more": "" if after else f", next[{units}]",
        "next": "reset" if after else "next",
        "state": f"{last} + {place}",
        "first": f"{first}[{place} + i]" if first else "0.0f",
        "row": f"                memcpy({rows} + ((at * {directions} + d) * {batches} + batch) * {units}, state, {units} * sizeof(float));"
        if rows
        else "",
    }
    text = _filled(_GRU.replace("${candidate}", _RESET_AFTER if after else _RESET_BEFORE), holes)
    lines = (line for line in text.splitlines(keepends=True) if line.strip())
    operands = tuple(name for name in (x, w, r, bias, first, rows, last) if name)
    return KernelText(_DOT, "".join(lines), operands)


_TEMPLATES: Mapping[str, Callable[[_Kernel], KernelText | None]] = {"QLinearAdd": _sum, "GRU": _gru}
