"""The measurements of `tests.bench.compare`, by part: each yields the name of a row and the function that measures it."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from tests.bench.compare_aidge import MODELS as AIDGE_MODELS
from tests.bench.fuse_time import commands
from tests.bench.orders import plan as planned
from tests.bench.orders import size_of
from tests.bench.peers import Peers
from tests.bench.plan_time import Subject, cost, installed, measured
from tests.bench.planners import plan_file
from tests.bench.quantised_models import OCR

ROOT = Path(__file__).parent.parent.parent
SHARED = ROOT.parent / "shared"
SIDE = Path(__file__).parent / "peer_side.py"
RANGES = ("batch=1:8", "seq=1:64")
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
_TIMEOUT = 120
"""Seconds, at most, of one command of a peer."""
_FIT_TIMEOUT = 600
_MINIMALLOC_TIMEOUT = "60s"

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Callable[[], Row]


class Run:
    """What a part needs: the peers, the number of models, and the programs that are given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.peers = Peers(given.peers)
        self.tflite: Path | None = given.tflite
        self.zoo: Path = given.zoo
        self.minimalloc: Path | None = given.minimalloc
        self.quantised: Path = given.quantised or given.peers / "floats"

    def side(self, peer: str, *arguments: str) -> Row:
        """Return what a peer answers; its failure as "failed"."""
        python = self.peers.python(peer)
        return {"failed": "not installed"} if python is None else answer([python, str(SIDE), *arguments])


def answer(command: Sequence[str], timeout: int = _TIMEOUT) -> Row:
    """Return the JSON in the last line that a command prints; where it fails, the reason as "failed"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {timeout} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
    text = done.stdout.strip()
    found: Row = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    return found


def spread(names: Iterable[str]) -> list[str]:
    """Return names so that the first ones are of many families: "bert_ts14" and "bert_dy20" are of one."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("_")[0], []).append(name)
    return [name for turn in zip_longest(*families.values()) for name in turn if name is not None]


def fuse(run: Run) -> Iterator[tuple[str, Measure]]:
    """Coverage, wrong results, processor time and memory of each tool that rewrites a model."""
    told = run.zoo / "truth.json"
    truth = json.loads(told.read_text()) if told.exists() else {}
    for name in spread(name for name in truth if (run.zoo / f"{name}.onnx").exists()):
        yield name, partial(_rewritten, run, run.zoo / f"{name}.onnx", truth[name])
    for subject in installed():
        if not subject.shapes:
            yield subject.path.stem, partial(_rewritten, run, subject.path, {})


def _rewritten(run: Run, path: Path, there: Row) -> Row:
    found: Row = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tools = {**commands(path, folder, run.peers.python("onnxruntime") or "")}
        # Fusion only: its other levels import torch.
        tools["transformers.optimizer"] = (*tools["transformers.optimizer"], "--opt_level", "0")
        tools["onnxslim"] = (run.peers.python("onnxslim") or "", *tools["onnxslim"][1:])
        tools["onnxsim"] = (
            run.peers.python("onnxsim") or "",
            "-m",
            "onnxsim",
            str(path),
            str(folder / "sim.onnx"),
            "--no-certify",
        )
        script = (str(SIDE), "onnxscript", str(path), str(folder / "script.onnx"))
        tools["onnxscript"] = (run.peers.python("onnxscript") or "", *script)
        targets = {
            tool: next(Path(one) for one in reversed(command) if one.startswith(place))
            for tool, command in tools.items()
        }
        for tool, command in tools.items():
            found[tool] = _outcome(command, targets[tool])
        written = [tool for tool in tools if "failed" not in found[tool]]
        verdicts = answer(
            [sys.executable, "-m", "tests.bench.verdicts", str(path), *(str(targets[tool]) for tool in written)]
        )
        for tool in written:
            found[tool]["verdict"] = verdicts.get(str(targets[tool]), "not compared")
        found["onnxsim"]["certify"] = _certified([*tools["onnxsim"][:-1], "--certify"])
    return {"there": there, "tools": found}


def _outcome(command: Sequence[str], after: Path) -> Row:
    if not command[0]:
        return {"failed": "not installed"}
    used = cost(command)
    if math.isnan(used.seconds) or not after.exists():
        return {"failed": "the command fails"}
    model = onnx.load(after, load_external_data=False)
    found = {"counts": counted(model), "nodes": len(model.graph.node)}
    return {**found, "seconds": used.seconds, "memory": used.memory}


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
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"not done in {_TIMEOUT} s"
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "ertif" in line]
    return lines[-1].partition("(")[0].removeprefix("Certify:").strip() if lines else "says nothing"


def _is_named(op: str, names: Sequence[str]) -> bool:
    return op.partition(".")[0] in names


def plan(run: Run) -> Iterator[tuple[str, Measure]]:
    """The arena, processor time and memory of plan and of onnxsim, and Vela's allocators on the same buffers."""
    for subject in _subjects(run):
        yield (
            subject.path.stem if subject.path.stem != "model" else subject.path.parent.name,
            partial(_arenas, run, subject),
        )


def _subjects(run: Run) -> list[Subject]:
    zoo = spread(path.stem for path in sorted(run.zoo.glob("*.onnx")) if "dyn" not in path.stem)
    graphs = [Subject(path) for path in sorted((SHARED / "graphs").glob("*.onnx"))]
    return [*installed(), *graphs, *(Subject(run.zoo / f"{name}.onnx") for name in zoo)]


def _arenas(run: Run, subject: Subject) -> Row:
    shapes = [part for shape in subject.shapes for part in ("--shape", shape)]
    ours, _ = planned(subject.path, "--no-verify", *shapes)
    python = run.peers.python("onnxsim")
    theirs, own, plain = (
        measured(subject, str(Path(python or "").parent / "onnxsim"), 1) if python else (None, None, None)
    )
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.csv"
        fixed = Path(folder) / "fixed.onnx"
        command = [
            sys.executable,
            "-m",
            "onnxtile",
            "plan",
            str(subject.path),
            "--no-verify",
            "-q",
            "-o",
            str(fixed),
            *shapes,
        ]
        subprocess.run(
            [*command, "--whole-buffers", "--alignment", "1", "--emit", str(problem)], check=True, capture_output=True
        )
        bare, _ = plan_file(problem, False)
        limit = str(bare["lower_bound"])
        vela = {
            name: run.side("ethos-u-vela", "offsets", str(problem), name, limit) for name in ("greedy", "hillclimb")
        }
        sim = run.side("onnxsim", "arena", str(fixed))
    costs = {name: vars(one) for name, one in (("onnxsim", theirs), ("plan", own), ("no proof", plain)) if one}
    return {
        "arena": size_of(ours),
        "proved": ours["optimal_over"],
        "same buffers": size_of(bare),
        "vela": vela,
        "onnxsim": sim,
        "costs": costs,
    }


def problems(run: Run) -> Iterator[tuple[str, Measure]]:
    """MiniMalloc's problems: the arena and the processor time of each tool."""
    for path in sorted((SHARED / "minimalloc").glob("*.csv")):
        yield path.stem, partial(_problem, run, path)


def _problem(run: Run, path: Path) -> Row:
    capacity = path.name.split(".")[1]
    ours, seconds = plan_file(path, False, "--capacity", capacity)
    found: Row = {"capacity": int(capacity), "onnxtile": {"arena": size_of(ours) if ours else None, "seconds": seconds}}
    found["vela greedy"] = run.side("ethos-u-vela", "offsets", str(path), "greedy", capacity)
    found["vela hillclimb"] = run.side("ethos-u-vela", "offsets", str(path), "hillclimb", capacity)
    program = str(run.minimalloc) if run.minimalloc else None
    with tempfile.TemporaryDirectory() as folder:
        command = [program or "", f"--capacity={capacity}", f"--input={path}", f"--output={folder}/out.csv"]
        command += [f"--timeout={_MINIMALLOC_TIMEOUT}"]
        used = cost(command) if program else None
    known = used is not None and not math.isnan(used.seconds)
    found["MiniMalloc"] = (
        {"arena": int(capacity), "seconds": used.seconds}
        if used and known
        else {"failed": "no program was given" if not program else f"none found in {_MINIMALLOC_TIMEOUT}"}
    )
    return found


def ranges(run: Run) -> Iterator[tuple[str, Measure]]:
    """The arena of a plan over ranges of sizes, beside onnxsim's shape_cost."""
    for path in sorted(run.zoo.glob("*dyn*.onnx")):
        yield path.stem, partial(_range, run, path)


def _range(run: Run, path: Path) -> Row:
    dims = [part for one in RANGES for part in ("--dim", one)]
    ours, seconds = planned(path, "--no-verify", *dims)
    return {
        "arena": size_of(ours),
        "peak": ours["peak"],
        "seconds": seconds,
        "shape_cost": run.side("onnxsim", "ranges", str(path), *RANGES),
    }


def quantised(run: Run) -> Iterator[tuple[str, Measure]]:
    """The table of tests.bench.quantised_models: of the OCR models, and of the float models in the folder that is given."""
    run.quantised.mkdir(parents=True, exist_ok=True)
    for name in [*OCR, *spread(path.stem for path in sorted(run.quantised.glob("*.onnx")) if path.stem not in OCR)]:
        command = ["tests.bench.quantised_models", "measure", str(run.quantised), name, "--onnxsim"]
        yield name, partial(_lines, command, run.peers.python("onnxsim"))


def queries(run: Run) -> Iterator[tuple[str, Measure]]:
    """The matches of Aidge's queries in Aidge and here: tests.bench.compare_aidge, model by model."""
    for name in AIDGE_MODELS if run.zoo.is_dir() else ():
        yield name, partial(_queried, run, name)


def _queried(run: Run, name: str) -> Row:
    python = run.peers.python("aidge")
    if python is None:
        return {"failed": "not installed"}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "differences.json"
        command = [sys.executable, "-m", "tests.bench.compare_aidge", "--zoo", str(run.zoo), "--model", name]
        command += ["--each", "1", "--aidge", python, "--json", str(told)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if not told.exists():
            return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
        counts: Row = json.loads(told.read_text())["counts"]
    return counts


def micro(run: Run) -> Iterator[tuple[str, Measure]]:
    """The memory of TensorFlow Lite Micro with its own planner and with the plan: random networks, and the files that are given."""
    for path in sorted(run.tflite.glob("*.tflite")) if run.tflite else ():
        yield path.stem, partial(_heads, path)
    yield "random networks", partial(_heads, None)


def _heads(path: Path | None) -> Row:
    command = [sys.executable, "-m", "tests.bench.micro_models", *([str(path)] if path else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    return (
        {"heads": lines}
        if lines and not done.returncode
        else {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
    )


def _lines(command: Sequence[str], python: str | None) -> Row:
    """Return what a benchmark beside the `python` of a peer prints."""
    if python is None:
        return {"failed": "not installed"}
    whole = [sys.executable, "-m", *command, python]
    done = subprocess.run(whole, capture_output=True, text=True, check=False, cwd=ROOT)
    found: Row = {"lines": done.stdout.splitlines()}
    return found if done.returncode < 2 and done.stdout else {"failed": done.stderr.strip()[-200:]}


def fit(run: Run) -> Iterator[tuple[str, Measure]]:
    """The least arena that fit reaches without more multiplications; no peer rewrites an ONNX model for a memory."""
    del run
    for subject in installed():
        if not subject.shapes:
            yield subject.path.stem, partial(_fitted, subject.path)


def _fitted(path: Path) -> Row:
    command = [sys.executable, "-m", "onnxtile", "fit", str(path), "--smallest", "--dry-run", "-q", "--json", "-"]
    start = time.monotonic()
    found = answer(command, _FIT_TIMEOUT)
    seconds = time.monotonic() - start
    return (
        found
        if "failed" in found
        else {"before": found["before"]["arena"], "after": found["after"]["arena"], "seconds": seconds}
    )


PARTS: Mapping[str, Callable[[Run], Iterator[tuple[str, Measure]]]] = {
    "fuse": fuse,
    "plan": plan,
    "problems": problems,
    "ranges": ranges,
    "quantised": quantised,
    "queries": queries,
    "micro": micro,
    "fit": fit,
}
