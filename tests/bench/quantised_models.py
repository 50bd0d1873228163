"""The table of quantised models: islands, arenas beside the ideal, constants, and time beside onnxsim.

Models are the files of a folder, in which `tests/bench/export.py` puts float models, and those of the rapidocr-onnxruntime wheel. Each is
quantised in each form by models/make_quantised.py. Operators are the nodes beside a DequantizeLinear or QuantizeLinear, and the products
of integers. An island is found if the node is inside a kernel of the plan.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnxruntime

from models import make_quantised
from tests.bench.commands import OWN, Ran, ran
from tests.bench.ideal_arena import ideal, tensor_sizes
from tests.bench.tables import Rows, Table

FORMS = ("qdq", "qoperator", "dynamic", "int4", "int4-qdq")
OCR = {
    "ch_PP-OCRv4_det_infer": [1, 3, 320, 320],
    "ch_PP-OCRv4_rec_infer": [1, 3, 48, 320],
    "ch_ppocr_mobile_v2.0_cls_infer": [1, 3, 48, 192],
}
INTEGER = {"ConvInteger", "MatMulInteger"}


def add_ocr(folder: Path) -> None:
    """Write the models of the rapidocr-onnxruntime wheel, with fixed shapes, to `folder`."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        return
    for name, shape in OCR.items():
        model = onnx.load(Path(spec.origin).parent / "models" / f"{name}.onnx")
        held = {one.name for one in model.graph.initializer}
        (given,) = (one for one in model.graph.input if one.name not in held)
        for dim, size in zip(given.type.tensor_type.shape.dim, shape, strict=True):
            dim.Clear()
            dim.dim_value = size
        for dim in (dim for one in model.graph.output for dim in one.type.tensor_type.shape.dim):
            dim.Clear()
        onnx.save(model, folder / f"{name}.onnx")


def operators(model: onnx.ModelProto) -> set[str]:
    """Return the first outputs of the nodes of `model` that compute beside quantisation."""
    makers = {name: node for node in model.graph.node for name in node.output}
    constant = {one.name for one in model.graph.initializer} | {
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output
    }
    readers: dict[str, list[str]] = {}
    for node in model.graph.node:
        if all(not name or name in constant for name in node.input):
            constant.update(node.output)
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)

    def beside(node: onnx.NodeProto) -> bool:
        made = (makers[name].op_type for name in node.input if name in makers)
        read = (op for name in node.output for op in readers.get(name, ()))
        return "DequantizeLinear" in made or "QuantizeLinear" in read or node.op_type in INTEGER

    moving = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
    return {
        node.output[0]
        for node in model.graph.node
        if node.op_type not in moving and node.output[0] not in constant and beside(node)
    }


def quantised(given: Namespace) -> Rows:
    """Yield a row for each model and form that the quantiser gives: the plan of the command, which runs in its arena.

    The ratio is that of the processor times of the whole command `plan` over `python -m onnxsim`, each the median of --runs in turn.
    """
    logging.disable(logging.WARNING)
    folder = given.folder
    add_ocr(folder)
    quantise, made = quantiser(), folder / "quantised"
    made.mkdir(exist_ok=True)
    for source in sorted(folder.glob("*.onnx")):
        for form in given.form or FORMS if source.stem in (given.names or {source.stem}) else ():
            target = made / f"{source.stem}.{form}.onnx"
            if not target.exists():
                quantise(source, form, target)
            if target.stat().st_size and _is_quantised(target):
                yield source.stem, form, *measured(target, given.onnxsim, given.runs)


def measured(file: Path, onnxsim: str | None, runs: int) -> Sequence[object]:
    """Plan the model of `file` by the command line `runs` times, and compare: the cells of its row."""
    proto = onnx.load(file)
    there = operators(proto)
    with tempfile.TemporaryDirectory() as folder:
        out, told = Path(folder, "a.onnx"), Path(folder, "a.json")
        ours = [sys.executable, *OWN, "plan", file, "-o", out, "--json", told, "--force", "-q"]
        theirs = [onnxsim, "-m", "onnxsim", file, f"{folder}/b.onnx"]
        times = [(ran(ours), ran(theirs) if onnxsim else Ran(1, "", "", 0)) for _ in range(runs)]
        plan = json.loads(told.read_text())
        kept = {node.output[0] for node in onnx.load(out).graph.node if node.domain != "onnxtile"}
    own, other = ([one.seconds for one in column if not one.code] for column in zip(*times, strict=True))
    found = f"{len(there - kept)} of {len(there)}" if there else "none there"
    sizes = (plan["arenas"][0]["size"], ideal(proto, tensor_sizes(proto, {})), plan["totals"]["constants"])
    ratio = statistics.median(own) / statistics.median(other) if own and other else ""
    return found, *sizes, "yes" if plan["verdict"]["equal"] else "NO", ratio


def quantiser() -> Callable[[Path, str, Path], None]:
    """Return the function that writes a model in a form to a file, which is empty where there is no such form of the model."""

    def quantise(source: Path, form: str, target: Path) -> None:
        try:
            make_quantised.quantise(source, form, target)
            onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        except Exception as error:  # the quantiser fails, or writes what onnxruntime refuses
            print(f"{source.stem} {form}: the quantiser fails: {error}", file=sys.stderr)
            target.write_bytes(b"")

    return quantise


def _is_quantised(file: Path) -> bool:
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    return any("uantize" in kind or "QLinear" in kind or "NBits" in kind or kind in INTEGER for kind in kinds)


COLUMNS = ("model", "form", "operators in kernels", "arena", "ideal", "constants", "verified", "CPU time / onnxsim")
TABLES = {
    "quantised": Table(
        "islands and arenas of quantised models, beside the ideal and onnxsim",
        COLUMNS,
        quantised,
        words=2,
        models=False,
        options={
            "--folder": {"type": Path, "required": True, "help": "of float models"},
            "--names": {"nargs": "+", "metavar": "MODEL"},
            "--form": {"action": "append", "choices": FORMS, "help": "all by default"},
            "--onnxsim": {"help": "a Python that has onnxsim"},
            "--runs": {"type": int, "default": 1, "help": "of each command; the median time counts"},
        },
    )
}
