"""The part of `tests.bench.compare` on tools that rewrite a model: coverage, results, processor time and memory."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from tests.bench.commands import ROOT, SIDE, TIMEOUT, Cost, Measure, Row, Run, answer, costs_in_turn, spread

MODEL_TYPES = {"gpt2": "gpt2", "t5": "t5", "vit": "vit", "swin": "swin", "clip": "clip", "whisper": "bart"}
"""The model types of onnxruntime.transformers.optimizer, by the start of a file's name; "bert" otherwise."""
OPERATORS = {
    "layernorm": (
        "LayerNorm",
        "SkipLayerNorm",
        "LayerNormalization",
        "SkipLayerNormalization",
        "EmbedLayerNormalization",
    ),
    "gelu": (
        *("GeLU", "GeLUTanh", "TwiceGeLU", "TwiceGeLUTanh", "QuickGeLU", "GeGLU"),
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu"),
    ),
    "rmsnorm": (
        "RMSNorm",
        "SkipRMSNorm",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    ),
    "attention": ("ScaledDotProductAttention", "Attention", "MultiHeadAttention", "GroupQueryAttention"),
}
"""The operators that count as found, of each tool."""
NO_FILE = "writes no file"
"""The verdict of a tool whose result is no file."""
AIDGE_PATTERNS = {"layer_norm": "layernorm", "gelu": "gelu", "scaled_dot_product_attention": "attention"}
"""The queries that Aidge publishes, in patterns/aidge, and the operators that they find. None finds an RMS norm."""


def fuse(run: Run) -> Iterator[tuple[str, Measure]]:
    """Coverage, wrong results, processor time and memory of each tool that rewrites a model."""
    told = run.zoo / "truth.json"
    truth = json.loads(told.read_text()) if told.exists() else {}
    for name in spread(name for name in truth if (run.zoo / f"{name}.onnx").exists()):
        yield name, partial(_rewritten, run, run.zoo / f"{name}.onnx", truth[name])


@dataclass(frozen=True)
class Tool:
    """A command that rewrites a model into the file `after`, or, without one, prints how many operators it finds."""

    command: Sequence[str]
    after: Path | None


def _rewritten(run: Run, path: Path, there: Row) -> Row:
    """Return a row: what each tool finds, whether its result is equal, and what its command takes."""
    with tempfile.TemporaryDirectory() as folder:
        tools = _tools(run, path, Path(folder))
        costs = costs_in_turn({name: tool.command for name, tool in tools.items() if tool.command[0]})
        found = {name: _outcome(tool, costs.get(name)) for name, tool in tools.items()}
        after = {name: str(tool.after) for name, tool in tools.items() if tool.after and "failed" not in found[name]}
        verdicts = answer([sys.executable, "-m", "tests.bench.verdicts", str(path), *after.values()])
        for name, file in after.items():
            found[name]["verdict"] = verdicts.get(file, "not compared")
        found["onnxsim"]["certify"] = _certified([*tools["onnxsim"].command[:-1], "--certify"])
    return {"there": there, "tools": found}


def _tools(run: Run, path: Path, folder: Path) -> Mapping[str, Tool]:
    """Return the tools; the first word of the command of one that is not installed is empty."""
    given = {**_commands(path, folder, run.peers.python("onnxruntime") or "")}
    # Fusion only: its other levels import torch.
    given["transformers.optimizer"] = (*given["transformers.optimizer"], "--opt_level", "0")
    given["onnxslim"] = (run.peers.python("onnxslim") or "", *given["onnxslim"][1:])
    target = str(folder / "sim.onnx")
    given["onnxsim"] = (run.peers.python("onnxsim") or "", "-m", "onnxsim", str(path), target, "--no-certify")
    for name in ("onnxscript", "onnxruntime"):
        given[name] = (run.peers.python(name) or "", str(SIDE), name, str(path), str(folder / f"{name}.by.onnx"))
    tools = {
        name: Tool(command, next(Path(one) for one in reversed(command) if one.startswith(str(folder))))
        for name, command in given.items()
    }
    patterns = [str(ROOT / "patterns" / "aidge" / f"{name}.toml") for name in AIDGE_PATTERNS]
    tools["Aidge"] = Tool((run.peers.python("aidge") or "", str(SIDE), "aidge", str(path), *patterns), None)
    return tools


def _commands(model: Path, folder: Path, peers: str) -> Mapping[str, Sequence[str]]:
    """Return the command of each tool that rewrites `model` into a file of `folder`."""
    kind = next((kind for prefix, kind in MODEL_TYPES.items() if model.name.startswith(prefix)), "bert")
    optimizer = (peers, "-m", "onnxruntime.transformers.optimizer", "--model_type", kind, "--input", str(model))
    return {
        "onnxtile": (sys.executable, "-m", "onnxtile", "fuse", str(model), "-o", str(folder / "fused.onnx")),
        "onnxslim": (peers, "-m", "onnxslim", str(model), str(folder / "slim.onnx")),
        "transformers.optimizer": (*optimizer, "--output", str(folder / "optimized.onnx")),
    }


def _outcome(tool: Tool, used: Cost | None) -> Row:
    if used is None:
        return {"failed": "not installed"}
    if math.isnan(used.seconds):
        return {"failed": "the command fails"}
    if tool.after is None:
        told = answer(tool.command)
        counts = told.get("counts", [])
        named = dict.fromkeys(OPERATORS, 0) | dict(zip(AIDGE_PATTERNS.values(), counts, strict=False))
        return told if "failed" in told else {"counts": named, "verdict": NO_FILE, **vars(used)}
    model = onnx.load(tool.after, load_external_data=False)
    return {"counts": counted(model), "nodes": len(model.graph.node), **vars(used)}


def counted(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many operators of each kind a model has, those in functions that it calls too; in one of a kind, no other of it counts."""
    functions = {(one.domain, one.name): one.node for one in model.functions}
    counts, todo = dict.fromkeys(OPERATORS, 0), [(node, frozenset(OPERATORS)) for node in model.graph.node]
    while todo:
        node, open_kinds = todo.pop()
        kinds = {kind for kind in open_kinds if _is_named(node.op_type, OPERATORS[kind])}
        for kind in kinds:
            counts[kind] += 1
        todo += [(inner, open_kinds - kinds) for inner in functions.get((node.domain, node.op_type), [])]
    return counts


def _certified(command: Sequence[str]) -> str:
    """Return the outcome that `onnxsim --certify` prints."""
    if not command[0]:
        return "not installed"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"not done in {TIMEOUT} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "ertif" in line]
    return lines[-1].partition("(")[0].removeprefix("Certify:").strip() if lines else "says nothing"


def _is_named(op: str, names: Sequence[str]) -> bool:
    return op.partition(".")[0] in names
