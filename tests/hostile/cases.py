"""A mutant and the command that reads it, made from a seed: the same files and arguments each time."""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import os
import random
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxtile.system.registry import data_folder
from tests.conftest import LIGHT, ZOO
from tests.hostile.models import bases
from tests.hostile.mutate import mutated_bytes, mutated_model, mutated_text
from tests.hostile.mutate_json import mutated_json

_GRAPHS = ZOO.parent / "graphs"
_WHEELS = {
    "rapidocr_onnxruntime": "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "silero_vad": "data/silero_vad_16k_op15.onnx",
    "magika": "models/standard_v3_3/model.onnx",
}
_REAL_SHARE = 0.12
"""Part of the mutants whose base is a real model: these take many times as long."""

_MODEL_COMMANDS = (
    *("inspect m.onnx", "inspect m.onnx --training --emit out/n.csv", "inspect m.onnx --tree --json -"),
    *("inspect m.onnx --trace . -o out/t.npz", "inspect m.onnx --trace . "),
    *("inspect m.onnx --dim N=1:8 --json out/i.json",),
    *("match m.onnx MatMul->Add", "match m.onnx . --json -", "match m.onnx (Conv|MatMul)-*>.{1,3}"),
    *("fuse m.onnx -o out/o.onnx", "fuse m.onnx -p Linear --lower onnx -o out/o.onnx"),
    *("fuse m.onnx --explain LayerNorm",),
    *("fuse m.onnx --lower ort -o out/o.onnx", "fuse m.onnx --lower qdq -o -", "fuse m.onnx --for-memory --dry-run"),
    *("unfuse m.onnx -o out/o.onnx", "unfuse m.onnx -o - "),
    *("plan m.onnx -o out/o.onnx", "plan m.onnx --io inside --alignment 1 --emit out/p.html --dry-run"),
    *("plan m.onnx --no-verify --order min-peak --emit out/p.svg --emit out/p.h -o out/o.onnx",),
    *("plan m.onnx --order any --dry-run",),
    *("plan m.onnx --dim N=1:8 --dry-run",),
    *("plan m.onnx --dim N=2 --emit out/p.json --emit out/p.csv --dry-run",),
    *("plan m.onnx --target t.toml --dry-run",),
    *("plan m.onnx --state found --dry-run", "plan m.onnx --capacity a=128 --capacity b=1MiB --movement activations --dry-run"),
    *("plan m.onnx --capacity a=128 --capacity b=1MiB --movement weights --emit out/p.html -o out/o.onnx",),
    *("plan m.onnx --layout y.toml --capacity a=1KiB --capacity b=1MiB --emit out/p.h --dry-run",),
    *("plan m.onnx --dim u=:4 --dim L=:9 --io overwrite --dry-run", "plan m.onnx --check m.onnx"),
    *("tile m.onnx --max 2 -o out/o.onnx", "tile m.onnx --max 3 --conv -o out/o.onnx"),
    *("tile m.onnx --max 1KiB --wrap --no-verify -o out/o.onnx",),
    *("fit m.onnx --capacity 256 -o out/o.onnx", "fit m.onnx --capacity smallest -o out/o.onnx"),
    *("fit m.onnx --dry-run", "fit m.onnx --emit out/c.curve.html", "fit m.onnx --emit out/c.curve.csv --json -"),
    *("fit m.onnx --capacity a=256 --capacity b=64KiB -o out/o.onnx", "fit m.onnx --capacity 512 --functions wrap --dry-run"),
    *("plan m.onnx --emit out/p.certificate.json --dry-run", "plan m.onnx --layout s.toml --emit out/p.trace.json --dry-run"),
    *("plan m.onnx --dim N=1:8 --state found --dry-run", "plan m.onnx --dim N=1:8 --dim M=1:4 --emit out/p.h --emit out/p.csv --dry-run"),
    *("plan m.onnx --state x=y --runs 3 --dry-run", "plan m.onnx --layout w.toml --emit out/p.svg --dry-run"),
    *("plan m.onnx --capacity a=256 --capacity b=1MiB --movement activations --target b.toml --dry-run",),
    *("verify m.onnx base.onnx", "verify base.onnx m.onnx --edge --runs 1", "verify m.onnx m.onnx --bisect"),
    *("pattern new --from m.onnx --nodes a,b,y -o out/p.toml", "run p.toml m.onnx -o out"),
    *("run p.toml m.onnx -o out --junit out/r.xml --markdown out/r.md",),
)  # fmt: skip
_LAYOUT = """keep = ["h"]
whole_buffers = false
[pins]
y = 64
[places]
y = "a"
[workspaces]
MatMul = "4096 shared; 64 unique"
Relu = "inputs[0].bytes // 4"
"""
_LAYOUTS = {
    "y.toml": b'pins = {y = 64}\nplaces = {y = "a"}\nkeep = ["h"]\n',
    "s.toml": b'workspaces = {"*" = "shared"}\n',
    "w.toml": b"whole_buffers = true\n",
    "t.toml": b"streams = 2\n",
    "b.toml": b'bandwidth = {b = "1MB/s"}\nmacs_per_second = "1M"\n',
}
_PLAN_COMMANDS = (
    "plan base.onnx --check p.json",
    "plan base.onnx --check p.json --json -",
    "plan base.onnx --emit out/q.html --compare p.json --dry-run",
    "plan base.onnx --emit out/q.json --compare p.json --dim N=1:4 --dry-run",
)
_PLANS: tuple[Mapping[str, Any], ...] = (
    {},
    {"io": "inside", "alignment": 1},
    {"order": "any"},
    {"movement": "activations", "capacity": {"a": 512, "b": 2**20}},
    {"movement": "weights", "capacity": {"a": 512, "b": 2**20}},
    {"io": "overwrite"},
)
"""Options of the plans whose JSON is mutated; where they do not apply to a model, its plan is without them."""
_TEXT_COMMANDS = {
    "pipeline": ("p.toml", ("run p.toml base.onnx -o out", "run p.toml base.onnx -o out --dry-run", "run p.toml")),
    "pattern": ("f.toml", ("fuse base.onnx -p f.toml -o out/o.onnx", "fuse base.onnx -p f.toml --explain f --dry-run")),
    "layout": ("y.toml", ("plan base.onnx --layout y.toml --dry-run", "plan base.onnx --capacity a=1KiB --layout y.toml --dry-run")),
    "limits": ("l.toml", ("tile base.onnx --target l.toml -o out/o.onnx", "fit base.onnx --capacity 1KiB --target l.toml -o out/o.onnx")),
    "problem": ("b.csv", ("plan b.csv", "plan b.csv --emit out/b.csv --capacity arena=1000",
        "plan b.csv --search exact,1s --emit out/b.html")),
    "query": ("q.txt", ("match base.onnx {query}", "fuse base.onnx -p {query} --dry-run", "inspect base.onnx --trace {query}")),
    "model text": ("m.onnxtxt", ("inspect m.onnxtxt", "plan m.onnxtxt --dry-run", "fuse m.onnxtxt -o out/o.onnx")),
    "model json": ("m.onnxjson", ("inspect m.onnxjson", "tile m.onnxjson --max 3 -o out/o.onnx")),
    "model proto text": ("m.textproto", ("inspect m.textproto", "plan m.textproto --dry-run")),
}  # fmt: skip
_MICRO_COMMANDS = (
    "plan m.tflite --no-verify -o out/o.tflite",
    "plan m.tflite --no-verify --emit out/p.json --dry-run",
    "plan m.tflite -o out/o.tflite",
    "inspect m.tflite",
)
_BASELINE = "run p.toml base.onnx -o out --baseline s.json"
_ARRAY_COMMANDS = (
    *("verify base.onnx base.onnx --inputs x.npz", "plan base.onnx --inputs x.npz --dry-run"),
    *("inspect base.onnx --trace . --inputs x.npz", "inspect base.onnx --inputs x.npz"),
    "plan base.onnx --state found --inputs x.npz --dry-run",
)
_ARGUMENTS = (
    *("plan base.onnx --dry-run --dim {text}={number}", "plan base.onnx --dry-run --dim N={number}:{number}"),
    *("plan base.onnx --dry-run --shape x={number}x{number}", "plan base.onnx --dry-run --capacity {text}={number}"),
    *("plan base.onnx --dry-run --alignment {number}", "plan base.onnx --dry-run --layout {text}"),
    *("plan base.onnx --dry-run --capacity a={number} --capacity b=1MiB --layout y.toml",),
    *("plan base.onnx --dry-run --state {text}={text}", "plan base.onnx --dry-run --state x=y --runs {number}"),
    *("plan base.onnx --dry-run --capacity a=256 --movement activations --target {text}",),
    *("plan base.onnx --dry-run --dim N=:{number}", "plan base.onnx --dry-run --search {number}"),
    *("tile base.onnx --max {number} -o out/o.onnx",),
    *("tile base.onnx --max {number}B --max {number}nodes -o out/o.onnx", "tile base.onnx --max {number}x{number}x_",),
    *("tile base.onnx --max 2 --skip {text} -o out/o.onnx",),
    *("fit base.onnx --capacity {number} -o out/o.onnx --budget {number}%",),
    *("verify base.onnx base.onnx --inputs x={number}:{number}",),
    *("verify base.onnx base.onnx --runs 1 --seed {number}",),
    *("inspect {text}", "inspect base.onnx --emit out/{text}", "inspect base.onnx --trace {text}"),
    *("plan base.onnx --emit {text} --dry-run",),
    *("fuse base.onnx -p {text} --dry-run", "fuse base.onnx --explain {text}", "match base.onnx {text}"),
    *("list {text}",),
    *("pattern new --from base.onnx --nodes {text} --name {text}", "{text} base.onnx"),
    *("run {text} base.onnx --jobs {number}",),
    *("verify base.onnx base.onnx --runs {number},{number}s,{number}",),
    *("plan base.onnx --order {text} --search {text}", "plan base.onnx --dry-run --kernels {text} --io {text}"),
    *("plan base.onnx --dry-run --search {number}s"),
    *("plan base.onnx --dry-run --inputs {text}={number}:{number}", "plan base.onnx --dry-run --dim N=1:{number} --dim M={number}:9"),
    *("fit base.onnx --emit {text}.curve.html --dry-run", "fit base.onnx --capacity {text}={number} --capacity b={number} --dry-run"),
    *("fit base.onnx --capacity {text} --budget {text} --dry-run", "fit base.onnx --capacity smallest --budget {number}nodes --dry-run"),
    *("match base.onnx {text} --json -", "match base.onnx .[{text}=={number}]", "fuse base.onnx -p .{{number},{number}} --dry-run"),
    *("run p.toml base.onnx -o out --baseline {text}", "run p.toml base.onnx -o {text} --backend {text} --jobs {number}"),
    *("run p.toml base.onnx -o out --scheduler {text}", "unfuse {text} -o out/o.onnx", "verify base.onnx {text} --inputs {text}"),
)  # fmt: skip
_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "64",
    "nan",
    "inf",
    "1e400",
    "2147483648",
    "9223372036854775808",
    "9" * 400,
    "0x1",
    "1_0",
    "٣",
    "",
    "1.5",
    "1KiB",
)
_WORDS = (
    *("", " ", "N", "x", "a=b", "=", "--", "-h", "\x1b]0;t\x07", "a\x1b[31mb", "é", "\u202e", "\udcff"),
    *("../x", "/etc/passwd", "x" * 5000),
    *("(", "[", "{}", "%s", "{0.__class__}", "$(id)", "a\nb", "a\rb", ".", "*", "\\", "'", '"', "NaN"),
    *("null", "<script>", "p.html", "n.csv", "p.tflm"),
)  # fmt: skip

_PIPELINE = """doc = "all steps"
runs = "3s,1GiB"
models = ["base.onnx"]
output = "{name}.deploy.onnx"
[[steps]]
do = "fuse"
[[steps]]
do = "tile"
max = 64
[[steps]]
do = "plan"
emit = ["json", "html"]
capacity = {sram = "256KiB"}
search = "1s"
[[steps]]
do = "verify"
runs = 1
[budgets]
max_arena = "256KiB"
"""
_MORE_STEPS = """runs = "3s,1GiB"
models = ["base.onnx"]
output = "{name}.deploy.onnx"
[[steps]]
do = "fit"
capacity = {a = "1KiB", b = "1MiB"}
budget = "10%"
[[steps]]
do = "plan"
movement = "activations"
capacity = {a = 256, b = "1MiB"}
state = "none"
order = "min-peak"
emit = ["h", "certificate.json"]
layout = {pins = {y = 0}}
"""
_PROBLEM = "id,lower,upper,size,alignment\n" + "".join(f"b{i},{i},{i + 3},{i * 16},16\n" for i in range(12))


@dataclass(frozen=True)
class Case:
    """Files of a folder, and the arguments of the command that runs in it. `links` are symbolic links by name."""

    kind: str
    base: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    links: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write the files into an empty `folder`, and a folder for results; beside it lies a file that no command may read or change."""
        (folder / "out").mkdir(parents=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        for name, target in self.links.items():
            (folder / name).symlink_to(target)
        os.mkfifo(folder / "pipe")


@functools.cache
def small() -> dict[str, bytes]:
    """The small models."""
    return bases()


@functools.cache
def _real() -> tuple[Path, ...]:
    """Paths of real models: those of the wheels, and of the folders beside the checkout where they are."""
    light = Path(onnx.__file__).parent / "backend/test/data/light"
    found = [light / f"light_{name}.onnx" for name in LIGHT]
    for package, name in _WHEELS.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent / name)
    found += [*sorted(ZOO.glob("*.onnx")), *sorted(_GRAPHS.glob("*.onnx"))]
    return tuple(path for path in found if path.is_file())


def case(seed: int, *, real: bool = True) -> Case:
    """Return the mutant of `seed`; with `real`, some are of real models."""
    rng = random.Random(seed)
    kind = rng.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return _KINDS[kind][1](rng, real)


def _base(rng: random.Random) -> tuple[str, bytes]:
    name = rng.choice(list(small()))
    return name, small()[name]


def _model(rng: random.Random, real: bool) -> Case:
    name, data = _base(rng)
    command = rng.choice(_MODEL_COMMANDS)
    if real and rng.random() < _REAL_SHARE and not command.startswith("fit"):
        path = rng.choice(_real())
        name, data = path.name, path.read_bytes()
    files = {
        "m.onnx": mutated_model(data, rng),
        "base.onnx": data,
        "p.toml": _PIPELINE.encode(),
        **_LAYOUTS,
        "w.bin": bytes(4096),
    }
    return _of("model", name, command, rng, files)


def _plan(rng: random.Random, _real_too: bool) -> Case:
    name, data = _base(rng)
    text = mutated_json(_plan_of(name, rng.randrange(len(_PLANS))), rng)
    return _of(
        "plan",
        name,
        rng.choice(_PLAN_COMMANDS),
        rng,
        {"base.onnx": data, "p.json": text.encode("utf-8", "surrogatepass")},
    )


@functools.cache
def _plan_of(name: str, number: int) -> str:
    import onnxtile

    sizes = dict.fromkeys(("N", "M", "P", "Q", "L"), 4)
    model = onnx.ModelProto.FromString(small()[name])
    known = {d.dim_param for value in model.graph.input for d in value.type.tensor_type.shape.dim if d.dim_param}
    try:
        plan = onnxtile.plan(
            model,
            dims={**{n: sizes[n] for n in known}, **({"L": ":4"} if name == "bodies" else {})},
            verify=False,
            **_PLANS[number],
        )
    except onnxtile.OnnxtileError:
        return _plan_of(name, 0) if number else json.dumps({"buffers": [], "arena": 0, "format": 1})
    return json.dumps(plan.to_dict())


def _text(rng: random.Random, _real_too: bool) -> Case:
    name, data = _base(rng)
    kind = rng.choice(list(_TEXT_COMMANDS))
    file, commands = _TEXT_COMMANDS[kind]
    text = mutated_text(_text_of(kind, data, rng), rng)
    files = {"base.onnx": data} if kind == "query" else {"base.onnx": data, file: text.encode("utf-8", "surrogatepass")}
    return _of(kind, name, rng.choice(commands), rng, files, query=text.replace("\0", "")[:3000])


def _text_of(kind: str, data: bytes, rng: random.Random) -> str:
    match kind:
        case "pipeline":
            return rng.choice((_PIPELINE, _MORE_STEPS))
        case "pattern":
            return rng.choice(sorted(data_folder("patterns").glob("*.toml"))).read_text()
        case "limits":
            return rng.choice(sorted(data_folder("limits").glob("*.toml"))).read_text()
        case "layout":
            return _LAYOUT
        case "problem":
            return _PROBLEM
        case "query":
            return rng.choice(
                (
                    "MatMul-*>Add",
                    "(Conv|Gemm)[group == 1]->Relu",
                    "?x MatMul{1,3} -> (Add | Mul)",
                    ". -2> .",
                    "Softmax[axis == -1]",
                )
            )
    model = onnx.ModelProto.FromString(data)
    if kind == "model text":
        text: str = onnx.printer.to_text(model)
        return text
    from onnx import serialization

    found: bytes = serialization.registry.get("json" if kind == "model json" else "textproto").serialize_proto(model)
    return found.decode()


def _arrays(rng: random.Random, _real_too: bool) -> Case:
    name, data = _base(rng)
    model = onnx.ModelProto.FromString(data)
    arrays = {value.name: _array(value, rng) for value in model.graph.input}
    if rng.random() < 0.5:
        arrays[rng.choice([*arrays, "no such", "../x", "\x1b[31m", "file"])] = rng.choice(_odd_arrays())
    content = _archive(arrays, zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED)
    way = rng.random()
    if way < 0.5:
        content = mutated_bytes(content, rng)
    elif way < 0.6:
        content = _odd_archive(rng)
    return _of("arrays", name, rng.choice(_ARRAY_COMMANDS), rng, {"base.onnx": data, "x.npz": content})


def _archive(arrays: Mapping[str, Any], compression: int) -> bytes:
    """Return the bytes of an .npz file, as numpy.savez writes it, with names that this would not take."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def _array(value: onnx.ValueInfoProto, rng: random.Random) -> Any:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else rng.choice((1, 2, 4)) for d in tensor.shape.dim]
    if tensor.elem_type == onnx.TensorProto.STRING:
        return np.full(shape, "a")
    return np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def _odd_arrays() -> tuple[Any, ...]:
    return (
        *(np.array([{}, None], object), np.array(["a\x1bb", "é"]), np.array([b"\xff"]), np.ones((2, 3), complex)),
        *(np.array(1.0), np.ones((0, 3), np.float32), np.ones((1,) * 33, np.float32), np.array(["2020"], "datetime64[Y]")),
        *(np.ones(3, [("a", "f4"), ("b", "i8")]), np.full((2, 8), np.nan, np.float32), np.ones((2, 8), np.float16), np.ones((2, 8), ">f4")),
    )  # fmt: skip


def _odd_archive(rng: random.Random) -> bytes:
    """Return an archive whose entries are no arrays, or arrays whose head says what is not so."""
    heads = (
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 'a'), }",
        "(" * 3000,
        "__import__('os').system('id')",
        "",
    )
    text = rng.choice(heads).encode() + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in rng.sample(("x.npy", "../x.npy", "x", "/tmp/x.npy", "x.npy.npy"), 2):
            archive.writestr(
                name,
                b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(rng.choice((0, 4, 64, 2**22))),
            )
    return file.getvalue()


def _baseline(rng: random.Random, _real_too: bool) -> Case:
    name, data = _base(rng)
    summary = {
        "models": [
            {
                "model": "base.onnx",
                "passed": True,
                "error": None,
                "figures": {"arena": 1, "nodes": 2, "macs": 3},
                "budgets": [],
                "written": [],
            }
        ]
    }
    text = mutated_json(json.dumps(summary), rng)
    files = {"base.onnx": data, "p.toml": _PIPELINE.encode(), "s.json": text.encode("utf-8", "surrogatepass")}
    return _of("baseline", name, _BASELINE, rng, files)


def _micro(rng: random.Random, _real_too: bool) -> Case:
    """Return a mutant of a TensorFlow Lite model; an .onnx one where the package that makes them is absent."""
    if importlib.util.find_spec("tflite_micro") is None:
        return _model(rng, False)
    data = _micro_model(rng.randrange(4))
    return _of("tflite", "network", rng.choice(_MICRO_COMMANDS), rng, {"m.tflite": mutated_bytes(data, rng)})


@functools.cache
def _micro_model(seed: int) -> bytes:
    from tests.deployment.networks import network

    return network(seed)


def _arguments(rng: random.Random, _real_too: bool) -> Case:
    name, data = _base(rng)
    template = rng.choice(_ARGUMENTS)
    found = _of("arguments", name, "", rng, {"base.onnx": data, "p.toml": _PIPELINE.encode(), **_LAYOUTS})
    arguments = (_filled(part, rng) for part in template.split())
    return Case(found.kind, name, (*arguments, *found.arguments), found.files, found.links)


def _filled(part: str, rng: random.Random) -> str:
    while "{text}" in part or "{number}" in part:
        part = part.replace("{text}", rng.choice(_WORDS).replace("{", "(").replace("\0", ""), 1).replace(
            "{number}", rng.choice(_NUMBERS), 1
        )
    return part


def _of(kind: str, base: str, command: str, rng: random.Random, files: Mapping[str, bytes], query: str = "") -> Case:
    """Return a case with limits on its runs, save that one in eight has none."""
    limits = ("--runs", "3s,1GiB") if rng.random() < 0.875 else ()
    quiet = ("-q",) if rng.random() < 0.5 else ()
    parts = [query if part == "{query}" else part for part in command.split()]
    if parts[:1] == ["pattern"]:
        parts, quiet = [*parts], ()
    links = {"loop": "loop", "outside.bin": "../outside.bin", "dir.bin": "."}
    return Case(kind, base, (*parts, *quiet, *limits), files, links)


_KINDS: dict[str, tuple[int, Callable[[random.Random, bool], Case]]] = {
    "model": (64, _model),
    "plan": (7, _plan),
    "text": (15, _text),
    "arrays": (5, _arrays),
    "baseline": (2, _baseline),
    "arguments": (7, _arguments),
    "tflite": (3, _micro),
}
"""The share of each kind, and how one is made."""
