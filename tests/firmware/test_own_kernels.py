"""A table gives kernels functions in C of one's own; the run of the program proves them as it proves all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.firmware.build import Firmware, ProgramTarget, build
from onnxtile.firmware.own_kernels import read_own_kernels
from onnxtile.system.errors import Mismatch, UsageError
from tests.firmware.test_program import needs_cc, network, opened_of

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

HEADER = """#include <stdint.h>
void own_add(const float *a, const float *b, float *sum, int32_t size);
void own_conv(const float *x, const float *w, const float *b, float *y, float *work, int32_t channels, int32_t rows,
              int32_t filters, int32_t stride, int32_t pad);
"""
SOURCE = """#include "own.h"
void own_add(const float *a, const float *b, float *sum, int32_t size) {
    for (int32_t i = 0; i < size; ++i) sum[i] = a[i] + b[i];
}
/* Square images and kernels of 3 x 3, whose weights have their channels last; a pixel of all channels is gathered in the workspace. */
void own_conv(const float *x, const float *w, const float *b, float *y, float *work, int32_t channels, int32_t rows,
              int32_t filters, int32_t stride, int32_t pad) {
    const int32_t out = (rows + 2 * pad - 3) / stride + 1;
    for (int32_t at = 0; at < out * out; ++at) {
        for (int32_t k = 0; k < 9; ++k) {
            const int32_t row = at / out * stride + k / 3 - pad, column = at % out * stride + k % 3 - pad;
            const int inside = row >= 0 && row < rows && column >= 0 && column < rows;
            for (int32_t c = 0; c < channels; ++c)
                work[k * channels + c] = inside ? x[(c * rows + row) * rows + column] : 0.0f;
        }
        for (int32_t f = 0; f < filters; ++f) {
            float sum = b ? b[f] : 0.0f;
            for (int32_t i = 0; i < 9 * channels; ++i) sum += work[i] * w[f * 9 * channels + i];
            y[f * out * out + at] = sum;
        }
    }
}
"""
ADD = """
[[kernels]]
node = "Add[inputs[0].dtype == 'float']"
call = "own_add(inputs[0], inputs[1], outputs[0], outputs[0].size)"
"""
CONV = """
[[kernels]]
node = "Conv[group == 1 and inputs[1].shape[2] == 3]"
call = '''own_conv(inputs[0], inputs[1], inputs[2], outputs[0], workspace, inputs[0].shape[1], inputs[0].shape[2],
                   inputs[1].shape[0], strides[0], pads[0])'''
workspace = "4 * 9 * inputs[0].shape[1]"
axes = { "inputs[1]" = [0, 2, 3, 1] }
"""


def table(folder: Path, entries: str, source: str = SOURCE) -> Path:
    (folder / "own.h").write_text(HEADER)
    (folder / "own.c").write_text(source)
    (folder / "table.toml").write_text(f'include = ["own.h"]\nsources = ["own.c"]\n{entries}')
    return folder / "table.toml"


def built(model: onnx.ModelProto, own: Path) -> Firmware:
    planned = onnxtile.plan(model, verify=False)
    return build(opened_of(planned), planned.plan, target=ProgramTarget(own=read_own_kernels(own)))


@needs_cc
def test_functions_of_ones_own_run_with_their_workspace_and_their_order_of_weights(tmp_path: Path) -> None:
    made = built(network(), table(tmp_path, ADD + CONV))
    code = made.source.code
    assert made.proof.equal and made.proof.runs == 3
    assert '#include "own.h"' in code and code.count("own_conv(") == 1 and code.count("own_add(") == 1
    assert made.source.workspace == 4 * 9 * 6
    assert "acc += (float)input0" not in code, "no convolution is emx-onnx-cgen's"


@needs_cc
def test_the_first_entry_that_fits_counts_and_other_nodes_have_their_own_kernels(tmp_path: Path) -> None:
    first = CONV.replace("group == 1", "strides[0] == 2")
    made = built(network(), table(tmp_path, first + ADD))
    assert made.proof.equal and "own_conv(" in made.source.code and "row_end" in made.source.code


@needs_cc
def test_a_wrong_function_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(Mismatch, match="does not compute what the model does"):
        built(network(), table(tmp_path, ADD, SOURCE.replace("a[i] + b[i]", "a[i] - b[i]")))


@needs_cc
@pytest.mark.usefixtures("footprint")
def test_a_function_counts_in_flash(tmp_path: Path) -> None:
    made = built(network(), table(tmp_path, ADD))
    unused = "\nvoid unused(int32_t *x) { for (int i = 0; i < 100; ++i) x[i] = x[i * 3] * 7 + x[i * 5]; }\n"
    more = built(network(), table(tmp_path, ADD, SOURCE + unused))
    assert made.footprint is not None and more.footprint is not None
    assert more.footprint.code > made.footprint.code


@needs_cc
def test_an_operand_that_is_not_given_is_null(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[1, 2, 6, 6] x) => (float[1, 3, 4, 4] y) { y = Conv (x, w) }"""
    )
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    made = built(model, table(tmp_path, CONV))
    assert made.proof.equal and "NULL" in made.source.code


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("", r"the field 'kernels' is missing"),
        (ADD.replace("call =", "cal ="), r"table.toml:\d+: .*(unknown key|missing)"),
        (ADD.replace("Add[inputs[0].dtype == 'float']", "Add->Relu"), r"table.toml:\d+: a kernel is one node"),
        (ADD.replace("Add[inputs[0].dtype == 'float']", "Ad"), r"table.toml:\d+: .*Ad"),
        (ADD.replace("own_add(", "own_add"), r"table.toml:\d+: .* is no call"),
        (CONV.replace("4 * 9", "4 ^ 9"), r"table.toml:\d+: not a number of bytes"),
        (CONV.replace("[0, 2, 3, 1]", "[0, 2, 3]"), r"table.toml:\d+: axes are an order of all axes"),
        (ADD.replace("outputs[0].size", "outputs[0].dtype"), r"outputs\[0\].dtype.*neither a number nor an operand"),
        (ADD.replace("outputs[0].size", "workspace"), "has a workspace of no bytes"),
    ],
)
def test_a_table_that_makes_no_sense_is_one_line(entries: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        built(network(), table(tmp_path, entries))


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    own = table(tmp_path, ADD)
    (tmp_path / "own.c").unlink()
    with pytest.raises(UsageError, match=r"table.toml:\d+: there is no file .*own.c"):
        read_own_kernels(own)
