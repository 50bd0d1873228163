"""The measurements of `tests.bench.compare`, by part: each yields the name of a row and the function that measures it."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from tests.bench.fuse_time import commands
from tests.bench.orders import plan as planned
from tests.bench.orders import size_of
from tests.bench.peers import Peers
from tests.bench.plan_time import Subject, cost, installed, measured
from tests.bench.planners import plan_file

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
    "gelu": ("GeLU", "GeLUTanh", "Gelu", "BiasGelu", "FastGelu", "QuickGelu"),
    "attention": ("ScaledDotProductAttention", "Attention", "MultiHeadAttention", "GroupQueryAttention"),
}
"""The operators that count as found, of each tool."""
_TIMEOUT = 120
"""Seconds, at most, of one command of a peer."""

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Callable[[], Row]


class Run:
    """What a part needs: the peers, the number of models, and the programs that are given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.peers = Peers(given.peers)
        self.most: int | None = given.models
        self.zoo: Path = given.zoo
        self.minimalloc: Path | None = given.minimalloc
        self.quantised: Path | None = given.quantised

    def side(self, peer: str, *arguments: str) -> Row:
        """Return what a peer answers; its failure as "failed"."""
        python = self.peers.python(peer)
        return {"failed": "not installed"} if python is None else answer([python, str(SIDE), *arguments])


def answer(command: Sequence[str]) -> Row:
    """Return the JSON in the last line that a command prints; where it fails, the reason as "failed"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {_TIMEOUT} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
    text = done.stdout.strip()
    found: Row = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    return found


def fuse(run: Run) -> Iterator[tuple[str, Measure]]:
    """Coverage, wrong results, processor time and memory of each tool that rewrites a model."""
    truth = json.loads((run.zoo / "truth.json").read_text()) if run.zoo.is_dir() else {}
    for name in truth:
        path = run.zoo / f"{name}.onnx"
        if path.exists():
            yield name, partial(_rewritten, run, path, truth[name])


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
        for tool, command in tools.items():
            target = next(Path(part) for part in reversed(command) if part.startswith(place))
            found[tool] = _outcome(command, path, target)
        certify = [*tools["onnxsim"][:-1], "--certify"]
        done = (
            subprocess.run(certify, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
            if certify[0]
            else None
        )
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ertif" in line] if done else []
        found["onnxsim"]["certify"] = (
            lines[-1].partition("(")[0].removeprefix("Certify:").strip() if lines else "no word"
        )
    return {"there": there, "tools": found}


def _outcome(command: Sequence[str], before: Path, after: Path) -> Row:
    if not command[0]:
        return {"failed": "not installed"}
    used = cost(command)
    if math.isnan(used.seconds) or not after.exists():
        return {"failed": "the command fails"}
    kinds = [node.op_type for node in onnx.load(after, load_external_data=False).graph.node]
    counts = {kind: sum(_is_named(op, names) for op in kinds) for kind, names in OPERATORS.items()}
    check = subprocess.run(
        [sys.executable, "-m", "onnxtile", "verify", str(before), str(after), "-q"], capture_output=True, check=False
    )
    verdict = {0: "equal", 1: "WRONG"}.get(check.returncode, "does not run")
    return {"counts": counts, "seconds": used.seconds, "memory": used.memory, "verdict": verdict}


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
    zoo = [Subject(path) for path in sorted(run.zoo.glob("*.onnx")) if "dyn" not in path.stem]
    graphs = [Subject(path) for path in sorted((SHARED / "graphs").glob("*.onnx"))]
    return [*installed(), *zoo, *graphs]


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
    program = run.peers.minimalloc(run.minimalloc)
    with tempfile.TemporaryDirectory() as folder:
        command = [program or "", f"--capacity={capacity}", f"--input={path}", f"--output={folder}/out.csv"]
        used = cost(command) if program else None
    known = used is not None and not math.isnan(used.seconds)
    found["MiniMalloc"] = (
        {"arena": int(capacity), "seconds": used.seconds}
        if used and known
        else {"failed": "not built" if not program else "none fits"}
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
    """The table of tests.bench.quantised_models, of the models in the folder that is given."""
    for path in sorted(run.quantised.glob("*.onnx")) if run.quantised else ():
        command = ["tests.bench.quantised_models", "measure", str(path.parent), path.stem, "--onnxsim"]
        yield path.stem, partial(_lines, command, run.peers.python("onnxsim"))


def queries(run: Run) -> Iterator[tuple[str, Measure]]:
    """The matches of Aidge's queries in Aidge and here: tests.bench.compare_aidge."""
    each = "1" if run.most else "4"
    command = ["tests.bench.compare_aidge", "--zoo", str(run.zoo), "--each", each, "--aidge"]
    yield "all", partial(_lines, command, run.peers.python("aidge"))


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
    found = answer(command)
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
    "fit": fit,
}
