"""Tables of arenas: orders, tiles, ranges of sizes, copies between two memories, states of decoders, and certificates.

Bytes are at an alignment of 64; weights and graph inputs are outside, and outputs live to the end, unless a table says otherwise.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

import onnxtile
from onnxtile.check import check_account, check_bound
from onnxtile.check.ranges import largest as largest_piece
from onnxtile.common_options import SizeOptions
from onnxtile.declare.plan_document import PlannedState
from onnxtile.model.binding import bind, bind_shapes, formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeRanges
from onnxtile.model.load import load
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.ranges import with_equal_dims
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible, OnnxtileError
from tests.bench.commands import OWN, ROOT, SIDE, answer, planned, ran, size_of, succeeded
from tests.bench.subjects import Subject, in_package, small
from tests.bench.tables import Rows, Table

Found = TypeVar("Found")
PEER = {"help": "a Python that has onnxsim"}


def orders(given: Namespace) -> Rows:
    """Yield the arena of each model in the order of its file and in the order that is found, beside the bound of all and onnxsim.

    onnxsim simplifies the model and plans the result: it does not align, counts graph inputs as well, and keeps the order of the file;
    in brackets are tensors that it gives no place. Times are of the whole command `plan`, with its run and without, over a process that
    loads, simplifies and plans with onnxsim.
    """
    proved, ratios = [], []
    for subject in given.models:
        path, options = subject.path, ("--dry-run", *subject.options)
        verified, seconds = planned(path, *options)
        _, plain = planned(path, "--no-verify", *options)
        own, _ = planned(path, "--no-verify", "--order", "model", *options)
        theirs = succeeded([given.onnxsim, SIDE, "arena", path])
        told = json.loads(theirs.out.splitlines()[-1])
        proved.append(verified["optimal_over"] == "any order")
        ratios.append((size_of(verified) / told["arena"], seconds / theirs.seconds, plain / theirs.seconds))
        arenas = (size_of(own), size_of(verified), verified["any_order_bound"])
        beside = f"{ratios[-1][0]:.2f} ({told['left_out']})"
        yield subject.name, len(verified["schedule"]), *arenas, proved[-1], beside, *ratios[-1][1:]
    yield f"\n{sum(proved)} of {len(proved)} proved."
    for name, column in zip(("arena", "time", "time without the run"), zip(*ratios, strict=True), strict=True):
        yield f"{name}, of onnxsim's: median {statistics.median(column):.2f}, largest {max(column):.2f}."


def tiles(given: Namespace) -> Rows:
    """Yield the arena of each model before and after `tile`, of convolutions too.

    "One tile" is the most that a tile takes of the arena: the blocks of operands that are no constants, its product, and the partial sum
    that it is added to. Plans are not run here; tests/planning proves them.
    """
    with tempfile.TemporaryDirectory() as folder:
        for subject in given.models or _tiled_models(Path(folder)):
            for limits in given.limits or ("--max 64", "--memory 256KiB"):
                after, document = Path(folder, "tiled.onnx"), Path(folder, "tiled.json")
                words = (*limits.split(), "--conv", *subject.options, "--no-verify", "-q")
                succeeded([sys.executable, *OWN, "tile", subject.path, *words, "-o", after, "--json", document])
                nodes, held = json.loads(document.read_text()), largest_tile(onnx.load(after))
                arenas = _plain_arena(subject), _plain_arena(Subject(after))
                grown = arenas[1] - arenas[0]
                counts = nodes["nodes_before"], nodes["nodes_after"]
                yield subject.name, limits, *counts, *arenas, grown, held, grown <= held


def _tiled_models(folder: Path) -> Iterator[Subject]:
    yield Subject(ROOT / "models" / "transformer.onnx", name="demo")
    gemm = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[64,4096] a, float[4096,512] b) => (float[64,512] y) {y = Gemm(a, b)}'
    )
    onnx.save(gemm, folder / "gemm.onnx")
    yield Subject(folder / "gemm.onnx", name="Gemm 64×4096×512")
    mobilenet = folder / "mobilenet_v2.onnx"
    succeeded([sys.executable, ROOT / "models" / "make_mobilenet_v2.py", mobilenet, "--seed", 0])
    yield Subject(mobilenet, dims=("batch=1",), name="MobileNetV2")
    for name in ("resnet50", "squeezenet", "densenet121", "shufflenet", "inception_v1"):
        yield from in_package("onnx", f"backend/test/data/light/light_{name}.onnx")
    for name in ("ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_rec_infer"):
        yield from in_package("rapidocr_onnxruntime", f"models/{name}.onnx")
    yield from in_package("magika", "models/*/model.onnx")


def _plain_arena(subject: Subject) -> int:
    plan, _ = planned(subject.path, *subject.options, "--dry-run", "--no-verify")
    assert not plan["unplanned"], f"{subject.name}: tensors without sizes"
    return size_of(plan)


def largest_tile(model: onnx.ModelProto) -> int:
    """Return the bytes of the arena that the largest tile takes; its product counts twice where it is one of several partial sums."""
    values = (*model.graph.value_info, *model.graph.output, *model.graph.input)
    constants = {one.name for one in model.graph.initializer}
    sizes = {one.name: _bytes_of(one.type.tensor_type) for one in values if one.name not in constants}
    taken = [0]
    for node in model.graph.node:
        mark: dict[str, Any] = next(
            (json.loads(one.value) for one in node.metadata_props if one.key == "pkg.onnxtile.tile"), {}
        )
        if mark.get("part") == "tile":
            product = sizes[node.output[0]] * (2 if mark["grid"][1] > 1 else 1)
            taken.append(sum(sizes.get(name, 0) for name in node.input) + product)
    return max(taken)


def _bytes_of(tensor: onnx.TypeProto.Tensor) -> int:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return prod(dim.dim_value for dim in tensor.shape.dim) * np.dtype(dtype).itemsize


SLOW = 1 << 34
"""Bytes of the slow memory."""
SHARES = (100, 110, 150)
"""The fast memory in percent of the largest operator."""


def movement(given: Namespace) -> Rows:
    """Yield the bytes copied between two memories, beside their lower bound; each plan is checked, and run in its two memories.

    The fast memory has the bytes of the largest operator, which is read off the refusal of a plan with 64 bytes, and parts of it more.
    """
    for subject in given.models or _moved_models():

        def plan(fast: int, *, verify: bool, subject: Subject = subject) -> onnxtile.PlannedModel:
            memories = {"fast": fast, "slow": SLOW}
            return onnxtile.plan(
                subject.path, movement=given.movement, capacity=memories, verify=verify, **subject.sizes
            )

        need = _largest_operator(plan)
        for share in SHARES:
            fast = -(-need * share // 6400) * 64
            made = plan(fast, verify=True)
            found, verdict = made.plan.movement, made.verdict
            assert found is not None and verdict is not None
            above = f"{(found.bytes - found.lower_bound) / max(found.lower_bound, 1):.1%} ({found.bound})"
            figures = (fast, len(found.copies), found.bytes, found.lower_bound, above)
            proof = "equal" if verdict.equal else "NOT EQUAL"
            yield subject.name, *figures, found.parts_bound, found.any_order_bound, proof


def _moved_models() -> Iterator[Subject]:
    for name in ("resnet50", "densenet121"):
        yield from in_package("onnx", f"backend/test/data/light/light_{name}.onnx")
    for subject in in_package("rapidocr_onnxruntime", "models/ch_PP-OCRv4_*_infer.onnx"):
        yield Subject(subject.path, ("x=1x3x320x320" if "det" in subject.name else "x=1x3x48x320",))
    yield from (Subject(one.path, ("images=1x3x320x320",)) for one in in_package("nudenet", "320n.onnx"))
    yield from map(Subject, sorted((ROOT / "models").glob("*.onnx")))


def _largest_operator(plan: Callable[..., object]) -> int:
    try:
        plan(64, verify=False)
    except Infeasible as error:
        found = re.search(r"needs ([\d,]+) bytes for its operands", str(error))
        assert found is not None, error
        return int(found[1].replace(",", ""))
    return 64


_WORD = re.compile(r"[A-Za-z_]\w*")


def decode_steps(given: Namespace) -> Rows:
    """Yield the arena of each decoder step without and with its states kept in place; inputs and outputs are inside the arena.

    Without: at the largest sizes, each cache twice, as an input and as an output. With: for all sizes, proved by 64 runs one after the
    other in one arena. DIMENSION=SIZE of a model is 8, 0:63 or past+1.
    """
    for subject in given.models:
        sizes = {"io": "inside", **subject.sizes}
        apart = onnxtile.plan(
            subject.path, **{**sizes, "dims": largest(sizes.get("dims", {}))}, state="none", verify=False
        )
        found = onnxtile.plan(subject.path, **sizes, state="found")
        plan, kept = found.plan, found.plan.states
        runs: Any = getattr(found.verdict, "state", found.verdict)
        before, copied = apart.plan.arena_size, sum(state.copied or 0 for state in kept)
        arenas = (before, plan.arena_size, f"{plan.arena_size / before:.0%}", copied)
        ends = ("not run", "", "not run") if runs is None else (runs.runs, _lengths(runs), bool(runs.equal))
        states = (_makers(subject.path, kept), len(kept), sum(state.size or 0 for state in kept))
        yield subject.name, *states, *arenas, *ends


def largest(dims: Mapping[str, str]) -> dict[str, int]:
    """Return the largest size of each dimension, of sizes such as 8, 0:63 and past+1."""
    ends = {name: str(size).split(":")[-1] for name, size in dims.items()}
    numbers = {name: int(size) for name, size in ends.items() if size.isdecimal()}
    sums = {name: size.split("+") for name, size in ends.items() if name not in numbers}
    return numbers | {
        name: sum(numbers[part.strip()] if _WORD.match(part.strip()) else int(part) for part in parts)
        for name, parts in sums.items()
    }


def _makers(path: Path, kept: Iterable[PlannedState]) -> str:
    """Return the operators that make the outputs of the states, of a file without its weights."""
    graph = onnx.load(path, load_external_data=False).graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    return ", ".join(sorted(Counter(makers[state.output] for state in kept)))


def _lengths(runs: Any) -> str:
    """Return the sizes of the first and the last run, where they grow."""
    sizes = runs.sizes
    return " to ".join(", ".join(map(str, one.values())) for one in (sizes[0], sizes[-1])) if len(sizes) > 1 else ""


def ranges(given: Namespace) -> Rows:
    """Yield plans of each model over ranges of its dimensions (--dim NAME=LOW:HIGH), beside plans of the largest sizes.

    "Least" and "middle" are the bytes of the formula with scaled offsets, each beside the peak; "unaligned" is the arena at an alignment
    of 1, as onnxsim counts. Of onnxsim: the arena of `shape_cost.bounds`, or how many tensors have no bound, and the arena of the largest
    sizes. Times are of shapes and plan, without reading the model and without runs.
    """
    for subject in given.models:
        path, bounds = subject.path, SizeOptions(dims=dict(one.split("=", 1) for one in given.dim)).dim_ranges
        low, high = ({name: ends[end] for name, ends in bounds.items()} for end in (0, 1))
        middle = {name: (low[name] + high[name]) // 2 for name in bounds}
        fixed, fixed_seconds = _timed(partial(_at, sizes=high), path)
        found, seconds = _timed(partial(_over, bounds=bounds), path)
        arenas = (fixed.arena_size, found.arena_size, found.arena_size / fixed.arena_size)
        own = (*(_formula_bytes(found, sizes) for sizes in (low, middle)), _over(load(path), bounds, 1).arena_size)
        theirs = _onnxsim(given.onnxsim, path, bounds, high) if given.onnxsim else ("", "")
        yield subject.name, *arenas, *own, *theirs, fixed_seconds, seconds, seconds / fixed_seconds


def random_ranges(given: Namespace) -> Rows:
    """Yield the formula of the arena of each model over its ranges, beside plans of their own at random sizes.

    A model has those of the given dimensions (--dim) that its inputs have; a shape such as x=1x3x48x(32:320) stands after its name.
    """
    for subject in given.models:
        model = load(subject.path)
        bounds = _open_sizes(model, given.dim, subject.sizes.get("shapes", {}))
        plan, random, ratios = _over(model, bounds), Random(0), []
        for _ in range(given.count):
            sizes = {name: random.randint(*ends) for name, ends in bounds.items()}
            ratios.append(plan.arena_size_at(sizes) / _at(model.clone(), sizes).arena_size)
        most = _at(model, {name: high for name, (_, high) in bounds.items()}).arena_size
        yield subject.name, plan.arena_size / most, statistics.mean(ratios), max(ratios)


def _open_sizes(model: ir.Model, dims: Iterable[str], shapes: Mapping[str, Any]) -> SizeRanges:
    """Give the dimensions of `model` the names that formulas have, and return the range of each."""
    known = symbols(free_inputs(model))
    pairs = dict(one.split("=", 1) for one in dims)
    options = SizeOptions(dims={name: size for name, size in pairs.items() if name in known}, shapes=shapes)
    _, found = bind_shapes(model, options.shape_ranges)
    rename_symbols(model, options.dim_sums)
    with_equal_dims(model, {*options.dim_ranges, *options.dim_sums.values()})
    names = formula_names(model)
    rename_symbols(model, names)
    return {names.get(name, name): ends for name, ends in {**options.dim_ranges, **found}.items()}


def _timed(plan: Callable[[ir.Model], Found], path: Path) -> tuple[Found, float]:
    model = load(path)
    start = time.process_time()
    found = plan(model)
    return found, time.process_time() - start


def _at(model: ir.Model, sizes: Mapping[str, int]) -> PlanResult:
    bind(model, sizes, {})
    return plan_model(model, resolve(model, run=True), Constants(model), PlanSettings(order="auto"))


def _over(model: ir.Model, bounds: SizeRanges, alignment: int = 64) -> PlanResult:
    settings = PlanSettings(order="auto", ranges=bounds, alignment=alignment)
    return plan_model(model, resolve(model, run=True, ranges=bounds), Constants(model), settings)


def _formula_bytes(plan: PlanResult, sizes: Mapping[str, int]) -> str:
    peak = plan.formulas[0].peak if plan.formulas else None
    return f"{plan.arena_size_at(sizes):,} ({'?' if peak is None else format(largest_piece(peak, sizes), ',')})"


def _onnxsim(python: str, path: Path, bounds: SizeRanges, high: Mapping[str, int]) -> tuple[str, str]:
    over = answer([python, SIDE, "ranges", path, *(f"{name}={low}:{most}" for name, (low, most) in bounds.items())])
    with tempfile.TemporaryDirectory() as folder:
        model = load(path)
        bind(model, high, {})
        ir.save(model, Path(folder) / "fixed.onnx")
        at = answer([python, SIDE, "arena", Path(folder) / "fixed.onnx"])
    bound = "fails" if "failed" in over else f"none: {over['unbounded']:,} tensors" if over["arena"] is None else ""
    return bound or f"{over['arena']:,}", "fails" if "failed" in at else f"{at['arena']:,} ({at['left_out']:,})"


def certificates(given: Namespace) -> Rows:
    """Yield what each plan says of its arena, and whether the scripts without onnxtile accept its certificate.

    Free dimensions get small sizes with which the model runs. A script that refuses a proof ends the command with 1, after the table.
    """
    counts: Counter[str] = Counter()
    for subject in given.models:
        with tempfile.TemporaryDirectory() as folder:
            said, checked = _certified(subject.path, given, Path(folder))
        yield subject.name, *said, checked
        counts[checked] += 1
    yield f"\n{', '.join(f'{word} {count}' for word, count in counts.most_common())} of {len(given.models)}"
    if counts["refused"]:
        sys.exit(1)


def _certified(path: Path, given: Namespace, folder: Path) -> tuple[Sequence[object], str]:
    """Return the cells of a model, and "accepted", "refused", or why the scripts are not asked."""
    model, file = folder / "planned.onnx", folder / "plan.certificate.json"
    try:
        source = onnxtile.fuse(path, verify=False).model if given.fused else path
        made = onnxtile.plan(source, shapes=small(path), order=given.order, verify=False)
    except OnnxtileError as error:
        return ("", "", "", str(error)), "not planned"
    made.save(model)
    made.write(file)
    said = json.loads(file.read_text("utf-8"))
    cells = said["arena"], said["claim"] or "none", said["scope"] or ""
    if said["proof"] is None:
        return (*cells, said["reason"]), "no proof" if said["claim"] else "not said to be the smallest"
    (kind,) = set(said["proof"].get("tree", said["proof"])) & {"node", "backward", "step", "chain", "pair"}
    for words in ((check_account.__file__, model, file), (check_bound.__file__, file)):
        done = ran([sys.executable, "-Es", *words])
        if done.code:
            print(f"{path}: {done.err.strip()}", file=sys.stderr)
            return (*cells, kind), "refused"
    return (*cells, kind), "accepted"


TABLES = {
    "orders": Table(
        "arenas in the order of the file and in the order that is found, beside the bound and onnxsim",
        (
            *("model", "nodes", "order of the file", "arena", "bound", "proved", "of onnxsim's arena (left out)"),
            *("time / onnxsim", "without the run"),
        ),
        orders,
        options={"--onnxsim": PEER | {"required": True}},
    ),
    "tiles": Table(
        "arenas before and after tile",
        ("model", "limits", "nodes", "nodes after", "arena", "arena after", "grown", "one tile", "within"),
        tiles,
        words=2,
        options={"--limits": {"action": "append", "help": 'such as "--max 64"'}},
    ),
    "movement": Table(
        "bytes copied between a fast and a slow memory",
        ("model", "fast memory", "copies", "bytes moved", "lower bound", "above", "in parts", "any order", "proved"),
        movement,
        options={"--movement": {"default": "activations", "choices": ("activations", "weights")}},
    ),
    "decode-steps": Table(
        "arenas of decoder steps without and with their state in place",
        (
            *("model", "made by", "states", "their bytes", "arena without", "arena with", "of it", "copied", "runs"),
            *("lengths", "equal"),
        ),
        decode_steps,
        words=2,
    ),
    "ranges": Table(
        "plans over ranges of sizes, beside plans of the largest sizes and onnxsim",
        (
            *("model", "largest", "range", "of it", "least (peak)", "middle (peak)", "unaligned", "onnxsim, range"),
            *("onnxsim, largest (left out)", "s, largest", "s, range", "of it"),
        ),
        ranges,
        options={"--onnxsim": PEER, "--dim": {"action": "append", "default": [], "metavar": "NAME=LOW:HIGH"}},
    ),
    "random-ranges": Table(
        "formulas of arenas beside plans at random sizes",
        ("model", "range, of largest", "mean", "worst"),
        random_ranges,
        options={
            "--count": {"type": int, "default": 10},
            "--dim": {"action": "append", "default": [], "metavar": "NAME=LOW:HIGH"},
        },
    ),
    "certificates": Table(
        "certificates that the scripts without onnxtile accept",
        ("model", "arena", "claim", "scope", "proof", "checked"),
        certificates,
        options={"--order": {"default": "auto"}, "--fused": {"action": "store_true"}},
    ),
}
