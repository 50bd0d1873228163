"""Properties of further options: of fit, of places and times of copies, of limits files, and of several verbs one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

import onnxtile
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import Report, run_one
from onnxtile.system.errors import Infeasible
from tests.random_graphs.kernels import Array, run_model, session_of
from tests.random_graphs.plan_properties import carry_out
from tests.random_graphs.properties import (
    Case,
    attempted,
    fitted,
    may_refuse,
    may_run,
    require_drawn_alike,
    spell_out_swish,
    written,
)

TILE = "pkg.onnxtile.tile"
"""The metadata of a tile, JSON: `op` is the operator of the node that was cut, whose limits hold for the tile."""
QUICK: dict[str, Any] = {"search": "greedy-by-size"}
FITS: tuple[dict[str, Any], ...] = (
    {"tolerance": "exact"},
    {"tolerance": "exact", "functions": "wrap"},
    {"functions": "fuse"},
    {"functions": "wrap"},
    {"capacity": "smallest"},
    {"capacity": "smallest", "budget": "0%"},
    {"budget": "50%"},
    {"budget": "40nodes"},
    {"target": "16x16x16"},
    {"tolerance": "1step"},
    {"memories": True},
    {"memories": True, "tolerance": "exact"},
)


def _fit_options(case: Case, random: Random) -> dict[str, Any] | None:
    """Return options of fit; None where there is nothing to fit."""
    planned = onnxtile.plan(case.model, verify=False, dims=case.random_model.dims, **QUICK).plan
    capacity = int(planned.arena_size * random.choice([0.5, 0.6, 0.75, 0.9])) // 64 * 64
    if planned.unplanned or capacity < 64:
        return None
    options = dict(random.choice(FITS))
    if options.pop("memories", False):
        return {**options, "capacity": {"sram": capacity, "dram": 1 << 24}}
    return options if "capacity" in options else {**options, "capacity": capacity}


def fit_further(case: Case) -> None:
    """What further options of fit make has the same outputs, to the bit with an exact tolerance, and the arena that fit reports."""
    random, dims = case.random("fit options"), case.random_model.dims
    options = _fit_options(case, random)
    if options is None:
        return
    result = fitted(case, lambda: onnxtile.fit(case.model, dims=dims, verify=case.verify, **options))
    if result is None:
        return
    model = written(result.model)
    # With two memories the nodes are written in the order of the plan.
    require_drawn_alike(case, model, ordered=not isinstance(options.get("capacity"), dict))
    # The wide convolutions of random numbers round; without a run, fit does not know that their strips do otherwise.
    is_exact = options.get("tolerance") == "exact"
    exact = is_exact and not case.random_model.drawn
    case.require_same(
        run_model(model, case.feeds),
        exact=exact,
        but=frozenset() if is_exact else case.random_model.stepped,
    )
    if isinstance(options.get("capacity"), dict):
        return
    capacity = options["capacity"]
    assert capacity == "smallest" or result.after.arena <= capacity
    planned = onnxtile.plan(model, verify=False)
    assert planned.plan.arena_size == result.after.arena, (
        f"fit reports {result.after.arena} bytes, and plan {planned.plan.arena_size} for {options}"
    )


def placed(case: Case) -> None:
    """Tensors lie in the memories that are chosen for them, and the plan is carried out there."""
    random, dims = case.random("placed"), case.random_model.dims
    io = random.choice(["outputs", "inside"])
    free = onnxtile.plan(case.model, verify=False, dims=dims, io=io, **QUICK).plan
    rows = [row for row in free.buffers if row.alias is None and row.size]
    if not rows or free.unplanned:
        return
    moving = random.random() < 0.4
    memories = {"sram": 4 * free.arena_size + 4096, "dram": 1 << 24}
    kinds = {"workspace"} if moving else set()
    chosen = random.sample(rows, min(len(rows), random.choice([1, 2, 3])))
    places = {row.name: random.choice(["sram", "dram"]) for row in chosen if row.kind not in kinds}
    if not places:
        return
    options: dict[str, Any] = {"capacity": memories, "layout": {"places": places}, "io": io, **QUICK}
    if moving:
        options |= {"movement": "activations", "io": "inside"}
    result = onnxtile.plan(case.model, verify=case.verify, dims=dims, **options)
    found = result.plan.to_dict()
    at = {row["name"]: row["arena"] for row in found["buffers"]}
    # A tensor that is copied has a name of its own in the other memory.
    elsewhere = [
        name
        for name, memory in places.items()
        if (moving and memory == "sram" and f"{name}@dram" in at) or (not moving and at[name] != memory)
    ]
    assert not elsewhere, f"{elsewhere} of {places} lie elsewhere"
    carry_out(case, written(result.model), found)


def timed(case: Case) -> None:
    """Copies with a bandwidth have times that hold their bytes, and the plan is carried out at its addresses."""
    random, dims = case.random("timed"), case.random_model.dims
    planned = onnxtile.plan(case.model, verify=False, dims=dims, io="inside", **QUICK).plan
    if planned.unplanned or not planned.arena_size:
        return
    speeds: dict[str, Any] = {"bandwidth": {"dram": random.choice(["8GB/s", "100MB/s"])}}
    if random.random() < 0.5:
        speeds |= {"macs_per_second": random.choice(["4G", "1M"])}
    options: dict[str, Any] = {
        "capacity": {"sram": int(planned.arena_size * random.choice([0.6, 0.9, 1.5])) // 64 * 64 + 64, "dram": 1 << 24},
        "movement": random.choice(["activations", "weights"]),
        "target": speeds,
        "io": "inside",
        **QUICK,
    }
    try:
        result = onnxtile.plan(case.model, verify=case.verify, dims=dims, **options)
    except Infeasible:
        return
    found = result.plan.to_dict()
    with TemporaryDirectory() as folder:
        document = f"{folder}/plan.json"
        result.write(document)
        audit = onnxtile.check_plan(case.model, document, dims=dims)
        assert audit.sound, f"plan.json: {audit.failures[0]}"
    carry_out(case, written(result.model), found)


def _limits(random: Random) -> dict[str, Any]:
    """Return the fields of a limits file."""
    found: dict[str, Any] = {}
    for axis in random.sample("mkn", random.choice([1, 2, 3])):
        multiple = random.choice([1, 1, 2, 4])
        most = random.choice([1, 2, 3]) * multiple
        found[axis] = random.choice([{"max": most, "multiple": multiple}, {"multiple": multiple}, multiple * 2])
    kind = random.choice(["bare", "memory", "largest", "pad", "conv", "operator", "dtypes"])
    if kind == "memory":
        found["memory"] = random.choice([256, 512, '"1KiB"'])
    elif kind == "largest":
        found["largest"] = random.choice([{"elements": 32}, {"bytes": 128}, {"elements": 64, "bytes": 512}])
    elif kind == "pad":
        found = {axis: 4 for axis in "mkn"} | {"pad": "true"}
    elif kind == "dtypes":
        found["dtypes"] = random.choice(['["float32"]', '["float16", "int8"]', '["uint8", "int8", "float32"]'])
    if kind in {"conv", "operator"} or random.random() < 0.4 or all(one == {"multiple": 1} for one in found.values()):
        window = {
            name: random.choice([1, 2, 3]) for name in random.sample(["rows", "columns", "channels", "filters"], 2)
        }
        if kind == "operator":
            found |= {"operator.Conv": window, "operator.MatMul": {"m": 2, "k": 3}, "operator.Gemm": {"n": 2}}
        elif kind != "pad":
            found |= {"conv": "true", **window}
    return found


def _toml(fields: Mapping[str, Any]) -> str:
    """Return the text of a limits file."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {item}" for key, item in value.items()) + " }"
        return str(value)

    lines = [f"{key} = {text(value)}" for key, value in fields.items() if "." not in key]
    for key, table in fields.items():
        if "." in key:
            lines += [f"[{key}]", *(f"{name} = {value}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def within_limits(case: Case) -> None:
    """A model that is tiled for a limits file keeps its outputs, and every product that is not listed as skipped is within the bounds."""
    random = case.random("limits")
    fields = _limits(random)
    accumulate = random.choice(["chain", "sum", "tree", "gemm"])
    with TemporaryDirectory() as folder:
        target = Path(folder, "limits.toml")
        target.write_text(_toml(fields))
        options: dict[str, Any] = {"target": str(target), "dims": case.random_model.dims, "accumulate": accumulate}
        result = attempted(case, lambda: onnxtile.tile(case.model, verify=case.verify, **options))
    if result is None:
        return
    model = written(result.model)
    require_drawn_alike(case, model)
    case.require_same(run_model(model, case.feeds), exact=False, but=case.random_model.stepped)
    skipped = {entry["node"] for entry in result.to_dict()["skipped"]}
    _require_bounded(case, model, fields, skipped)


def _require_bounded(case: Case, model: onnx.ModelProto, fields: Mapping[str, Any], skipped: set[str]) -> None:
    """Raise AssertionError where a MatMul of the main graph exceeds a bound of the operator it is a tile of, and is not listed."""
    nodes = [node for node in model.graph.node if node.op_type == "MatMul" and not node.domain]
    whole = [node for node in nodes if not {node.name, *node.output} & skipped]
    shapes = _shapes(model, case.feeds, {name for node in whole for name in node.input})
    for node in whole:
        left, right = (shapes[name] for name in node.input)
        sizes = (left[-2] if len(left) > 1 else 1, left[-1], right[-1] if len(right) > 1 else 1)
        marks = {one.key: one.value for one in node.metadata_props}
        operator = json.loads(marks[TILE])["op"] if TILE in marks else "MatMul"
        bounds = [_most(fields.get(f"operator.{operator}", {}).get(axis, fields.get(axis))) for axis in "mkn"]
        over = [f"{axis}={size}" for axis, size, most in zip("mkn", sizes, bounds, strict=True) if most and size > most]
        assert not over, f"{node.name or node.output[0]!r} has {', '.join(over)} for {dict(fields)}"


def _most(bound: Any) -> int | None:
    found = bound.get("max") if isinstance(bound, dict) else bound
    assert found is None or isinstance(found, int)
    return found


def _shapes(model: onnx.ModelProto, feeds: Mapping[str, Array], names: set[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors of the main graph as a run has them."""
    found = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    found |= {name: np.shape(one) for name, one in feeds.items() if not isinstance(one, list)}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    shown = sorted(names - found.keys())
    copy.graph.ClearField("output")
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in shown)
    if shown:
        run = session_of(copy.SerializeToString()).run(shown, dict(feeds))
        found |= {name: np.shape(one) for name, one in zip(shown, run, strict=True)}
    return found


_STEPS = (
    'do = "fuse"',
    'do = "fuse"\nlower = "onnx"',
    'do = "tile"\nmax = 4\nconv = true',
    'do = "tile"\nmax = 3\nwrap = true',
    'do = "fit"\ncapacity = "smallest"',
    'do = "plan"\nsearch = "greedy-by-size"',
    'do = "plan"\nsearch = "greedy-by-size"\nio = "inside"\nemit = ["json", "csv"]',
    'do = "inspect"',
    'do = "verify"\nruns = 1',
)
_BINDING = ('do = "tile"', 'do = "fit"', 'do = "plan"')
"""The steps that write a model whose open sizes are bound."""
_ROUNDING = ('do = "fuse"\nlower', 'do = "tile"', 'do = "fit"')
"""The steps after which a model may round otherwise."""


def fair_steps(chosen: list[str], *, is_stepped: bool) -> list[str]:
    """Return the steps without a comparison that may fail although all is right: where rounding before it may lead to another step."""
    if not is_stepped:
        return chosen
    first = next((place for place, step in enumerate(chosen) if step.startswith(_ROUNDING)), len(chosen))
    return [step for place, step in enumerate(chosen) if place < first or not step.startswith('do = "verify"')]


def pipeline(case: Case) -> None:
    """A pipeline of several verbs passes, and the model that it writes keeps the outputs."""
    random, dims = case.random("pipeline"), case.random_model.dims
    chosen = random.sample(_STEPS, random.choice([2, 3, 4]))
    chosen = fair_steps(chosen, is_stepped=bool(case.random_model.stepped))
    binding = next((place for place, step in enumerate(chosen) if step.startswith(_BINDING)), None)
    bound = ", ".join(f"{json.dumps(name)} = {size}" for name, size in dims.items())
    steps = [
        f"[[steps]]\n{step}\n" + (f"dims = {{{bound}}}\n" if bound and place == binding else "")
        for place, step in enumerate(chosen)
    ]
    verify = case.verify and not case.random_model.stepped
    steps = [step if verify or "inspect" in step or "runs" in step else f"{step}verify = false\n" for step in steps]
    with TemporaryDirectory() as folder:
        source, file = Path(folder, "net.onnx"), Path(folder, "deploy.toml")
        source.write_bytes(case.model.SerializeToString())
        file.write_text("\n".join(steps))
        report = run_one(from_file(file), source, Destination())
        text = " | ".join(" ".join(step.split()) for step in steps)
        if may_refuse(case, report.error):
            return
        assert report.passed, f"{report.error} in {text}"
        made = _written(report)
        if made is None:
            return
        onnx.checker.check_model(made)
    spell_out_swish(made)
    if not may_run(made):
        return
    case.require_same(run_model(made, case.feeds), exact=False, but=case.random_model.stepped)


def _written(report: Report) -> onnx.ModelProto | None:
    files = [path for path in report.written if path.suffix == ".onnx"]
    return onnx.load(files[0]) if files else None


OPTION_PROPERTIES: dict[str, tuple[Callable[[Case], None], float]] = {
    "fit options": (fit_further, 0.05),
    "placed": (placed, 0.08),
    "timed": (timed, 0.08),
    "limits": (within_limits, 0.15),
    "pipeline": (pipeline, 0.05),
}
"""The properties, and how often each is asked of a model."""
