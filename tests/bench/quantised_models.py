"""The table of quantised models in docs/benchmarks.md: islands, arenas beside the ideal, constants, and time beside onnxsim.

    python tests/bench/quantised_models.py export FOLDER [MODEL ...]
    python -m tests.bench.quantised_models measure FOLDER [MODEL ...] [--form qdq ...] [--onnxsim PYTHON] [--write docs/benchmarks.md]

The table in docs/benchmarks.md is of one run of `measure`.

`export` needs torch, torchvision, timm and transformers, and nothing of onnxtile: it writes float models with seeded random weights.
`measure` adds the models of the rapidocr-onnxruntime wheel, quantises each model in each form by models/make_quantised.py, and measures.

Operators are the nodes beside a DequantizeLinear or QuantizeLinear, and the products of integers. An island is found if the node is
inside a kernel of the plan. The ratio is that of processor times, of system and user together, over all threads: of
the whole command `plan`, with its run, over `python -m onnxsim`, each the median of `--runs` in turn. It depends little on what else the
machine does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

FORMS = ("qdq", "qoperator", "dynamic", "int4", "int4-qdq")
TORCHVISION = (
    "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "googlenet", "densenet121", "shufflenet_v2_x1_0",
    "regnet_y_400mf", "squeezenet1_1",
)  # fmt: skip
TIMM = ("ghostnet_100", "repvgg_a0", "deit_tiny_patch16_224")
TRANSFORMERS = ("bert", "dinov2", "llama", "qwen2")
OCR = {
    "ch_PP-OCRv4_det_infer": [1, 3, 320, 320],
    "ch_PP-OCRv4_rec_infer": [1, 3, 48, 320],
    "ch_ppocr_mobile_v2.0_cls_infer": [1, 3, 48, 192],
}
INTEGER = {"ConvInteger", "MatMulInteger"}


def export(folder: Path, names: Sequence[str]) -> None:
    """Write each of the models `names`, all by default, with random weights to `folder`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in names or (*TORCHVISION, *TIMM, *TRANSFORMERS):
        file = folder / f"{name}.onnx"
        if file.exists():
            continue
        torch.manual_seed(0)
        module, inputs = _language_model(name) if name in TRANSFORMERS else _classifier(name)
        decodes = name in ("llama", "qwen2")  # TorchScript has no export of their masks
        with torch.no_grad():
            torch.onnx.export(
                module.eval(), inputs, str(file), opset_version=18 if decodes else 17, dynamo=decodes,
                external_data=False, output_names=["y"],
            )  # fmt: skip


def _classifier(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    picture = torch.rand(1, 3, 224, 224)
    if name in TIMM:
        import timm

        return timm.create_model(name, pretrained=False), (picture,)
    import torchvision

    more = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    return torchvision.models.get_model(name, weights=None, **more), (picture,)


def _language_model(name: str) -> tuple[Any, tuple[Any, ...]]:
    import torch
    import transformers

    tokens = torch.arange(32).reshape(1, 32)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    if name == "bert":
        return _FirstOf(transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=1000))), (tokens,)
    if name == "dinov2":
        config = transformers.Dinov2Config(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, image_size=112)
        return _FirstOf(transformers.Dinov2Model(config)), (torch.rand(1, 3, 112, 112),)
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[name]
    config = kind(**sizes, vocab_size=1000, num_key_value_heads=2, use_cache=False)
    return _FirstOf(transformers.AutoModelForCausalLM.from_config(config)), (tokens,)


def _FirstOf(model: Any) -> Any:  # noqa: N802 - a class that is made where torch is there
    """Return a module that gives the first result of `model` alone."""
    import torch

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given: Any) -> Any:
            return self.model(given, return_dict=False)[0]

    return First()


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


@dataclass(frozen=True)
class Measured:
    """A row of the table: bytes, counts of operators, and seconds."""

    model: str
    form: str
    there: int
    found: int
    arena: int
    ideal: int
    constants: int
    equal: bool
    ratio: float | None

    def row(self) -> str:
        """Return the row in Markdown."""
        found = f"{self.found} of {self.there}" if self.there else "none there"
        cells = [self.model, self.form, found, f"{self.arena:,}", f"{self.ideal:,}", f"{self.constants:,}"]
        return f"| {' | '.join([*cells, 'yes' if self.equal else 'NO', f'{self.ratio:.2f}' if self.ratio else ''])} |"


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


def measured(file: Path, name: str, form: str, onnxsim: str | None, runs: int) -> Measured:
    """Plan the model of `file` by the command line `runs` times, with its run in the arena, and compare."""
    from tests.bench.ideal_arena import ideal, tensor_sizes

    proto = onnx.load(file)
    there = operators(proto)
    with tempfile.TemporaryDirectory() as folder:
        out, told = Path(folder, "a.onnx"), Path(folder, "a.json")
        ours = [
            sys.executable,
            "-m",
            "onnxtile",
            "plan",
            str(file),
            "-o",
            str(out),
            "--json",
            str(told),
            "--force",
            "-q",
        ]
        theirs = [] if onnxsim is None else [onnxsim, "-m", "onnxsim", str(file), f"{folder}/b.onnx"]
        times = [(_processor_time(ours), _processor_time(theirs)) for _ in range(runs)]
        plan = json.loads(told.read_text())
        kept = {node.output[0] for node in onnx.load(out).graph.node if node.domain != "onnxtile"}
    mine, other = ([one for one in column if one is not None] for column in zip(*times, strict=True))
    ratio = statistics.median(mine) / statistics.median(other) if mine and other else None
    return Measured(
        name, form, len(there), len(there - kept), plan["arenas"][0]["size"], ideal(proto, tensor_sizes(proto, {})),
        plan["totals"]["constants"], plan["verdict"]["equal"], ratio,
    )  # fmt: skip


def _processor_time(command: Sequence[str]) -> float | None:
    """Return the seconds of user and system time of `command`, over all its threads; None where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not command or subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(
    folder: Path, names: Sequence[str], forms: Sequence[str], onnxsim: str | None, runs: int
) -> Iterator[Measured]:
    """Yield a row for each model and form that the quantiser gives."""
    quantise = quantiser()
    made = folder / "quantised"
    made.mkdir(exist_ok=True)
    for source in sorted(folder.glob("*.onnx")):
        if names and source.stem not in names:
            continue
        for form in forms:
            target = made / f"{source.stem}.{form}.onnx"
            if not target.exists():
                quantise(source, form, target)
            if target.stat().st_size and _is_quantised(target):
                yield measured(target, source.stem, form, onnxsim, runs)


def quantiser() -> Callable[[Path, str, Path], None]:
    script = Path(__file__).parents[2] / "models" / "make_quantised.py"
    spec = importlib.util.spec_from_file_location("make_quantised", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def quantise(source: Path, form: str, target: Path) -> None:
        try:
            module.quantise(source, form, target)
            onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        except (
            Exception
        ) as error:  # the quantiser fails, or writes what onnxruntime refuses: there is no such form of this model
            print(f"{source.stem} {form}: the quantiser fails: {error}", file=sys.stderr)
            target.write_bytes(b"")

    return quantise


def _is_quantised(file: Path) -> bool:
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    return any("uantize" in kind or "QLinear" in kind or "NBits" in kind or kind in INTEGER for kind in kinds)


HEAD = """| model | form | operators in kernels | arena | ideal | constants | verified | CPU time / onnxsim |
|---|---|---|---:|---:|---:|---|---:|"""


def main() -> None:
    """Export or measure, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=["export", "measure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--form", action="append", choices=FORMS, help="all by default")
    parser.add_argument("--onnxsim", metavar="PYTHON", help="an interpreter that has onnxsim")
    parser.add_argument("--runs", type=int, default=1, help="of each command; the median time counts")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    if options.action == "export":
        export(options.folder, options.names)
        return
    from tests.bench.tables import DOCS, show

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    add_ocr(options.folder)
    made = rows(options.folder, options.names, options.form or FORMS, options.onnxsim, options.runs)
    page = options.write or DOCS
    show(HEAD, (one.row() for one in made), mark="quantised_models.py" if options.write else "", page=page)


if __name__ == "__main__":
    main()
