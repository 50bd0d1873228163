"""Quantise a float model with onnxruntime's own quantisers, calibrated on seeded random inputs.

    python models/make_quantised.py MODEL FORM OUT [--dim NAME=N ...]

FORM is one of the keys of `FORMS`. The same model and form give the same file. A Sum of two tensors is quantised as an Add: for Sum
onnxruntime has no operator on quantised tensors, and in QOperator files it stays between floats.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

S8, U8 = QuantType.QInt8, QuantType.QUInt8
QDQ, QOPERATOR = QuantFormat.QDQ, QuantFormat.QOperator


class RandomInputs(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """A few random inputs of a model: floats uniform in [0, 1), whole numbers 0 or 1."""

    def __init__(self, model: Path, count: int = 2) -> None:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        generator = np.random.default_rng(0)
        self._feeds = iter([{one.name: _random(one, generator) for one in session.get_inputs()} for _ in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next inputs, None after the last."""
        return next(self._feeds, None)


def _random(given: onnxruntime.NodeArg, generator: np.random.Generator) -> np.ndarray:
    shape = [size if isinstance(size, int) else 1 for size in given.shape]
    if given.type == "tensor(float)":
        return generator.random(shape, np.float32)
    dtype = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}[given.type]
    return generator.integers(0, 2, shape).astype(dtype)


def _static(
    form: QuantFormat, activations: QuantType, weights: QuantType, per_channel: bool
) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        quantize_static(
            source, target, RandomInputs(source), quant_format=form, per_channel=per_channel, activation_type=activations,
            weight_type=weights,
        )  # fmt: skip

    return make


def _dynamic(source: Path, target: Path) -> None:
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def _four_bits(form: QuantFormat) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        model = onnx.load(source)
        if form is QDQ:  # blocks of int4 came with opset 21
            model = onnx.version_converter.convert_version(model, 21)
        quantiser = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, quant_format=form)
        quantiser.process()
        onnx.save(quantiser.model.model, target)

    return make


FORMS: dict[str, Callable[[Path, Path], Any]] = {
    "qdq": _static(QDQ, S8, S8, per_channel=False),
    "qdq-per-channel": _static(QDQ, S8, S8, per_channel=True),
    "qdq-u8s8": _static(QDQ, U8, S8, per_channel=True),
    "qoperator": _static(QOPERATOR, U8, U8, per_channel=False),
    "qoperator-per-channel": _static(QOPERATOR, S8, S8, per_channel=True),
    "qoperator-u8s8": _static(QOPERATOR, U8, S8, per_channel=True),
    "dynamic": _dynamic,
    "int4": _four_bits(QOPERATOR),
    "int4-qdq": _four_bits(QDQ),
}


def quantise(source: Path, form: str, target: Path, dims: dict[str, int] | None = None) -> None:
    """Write the model `source`, its dimensions bound by `dims`, in `form` to `target`."""
    with tempfile.TemporaryDirectory() as folder:
        bound, prepared = Path(folder, "bound.onnx"), Path(folder, "prepared.onnx")
        onnx.save(_bound(onnx.load(source), dims or {}), bound)
        quant_pre_process(bound, prepared, skip_symbolic_shape=True)
        onnx.save(_undescribed(onnx.load(prepared)), prepared)
        FORMS[form](prepared, target)


def _bound(model: onnx.ModelProto, dims: dict[str, int]) -> onnx.ModelProto:
    for dim in (dim for one in _inputs(model) for dim in one.type.tensor_type.shape.dim):
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]
    for node in (node for node in model.graph.node if node.op_type == "Sum" and len(node.input) == 2):
        node.op_type = "Add"
    version = next(one.version for one in model.opset_import if one.domain == "")
    return model if version >= 13 else onnx.version_converter.convert_version(model, 13)


def _undescribed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` whose initializers are no inputs and have no shape beside: the quantisers transpose some, but not these shapes."""
    held = {one.name for one in model.graph.initializer}
    for described in (model.graph.input, model.graph.value_info):
        kept = [one for one in described if one.name not in held]
        del described[:]
        described.extend(kept)
    model.ir_version = max(model.ir_version, 4)  # IR version 3 wants them among the inputs
    return model


def _inputs(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    held = {one.name for one in model.graph.initializer}
    yield from (one for one in model.graph.input if one.name not in held)


def main() -> None:
    """Read the command line and quantise."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("form", choices=FORMS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="bind a dimension of the inputs")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    quantise(options.model, options.form, options.out, {k: int(v) for k, v in (one.split("=") for one in options.dim)})


if __name__ == "__main__":
    main()
