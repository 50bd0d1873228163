"""The tables of the C header run a model: an example beside this file, compiled, computes what onnxruntime computes."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtile
from onnxtile.report.c_header import run_table
from onnxtile.report.format import PlanJson, RenderOptions
from onnxtile.report.formats.to_header import FORMAT
from onnxtile.system.runtime import Array, Session
from onnxtile.verbs.flows.results import PlannedModel
from tests.conftest import ROOT

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")

# Compares every operand with the recorded value, then writes the recorded results: a kernel for any operator.
REPLAY = """
static FILE *recorded;
static int run(const Node *n) {
    if (!recorded) recorded = fopen("recorded.bin", "rb");
    for (uint32_t i = 0; i < n->operand_count + n->result_count; ++i) {
        const Tensor *t = linked(n->first_operand + i);
        if (!t || (t->size && starts[t - net_tensors] < 0)) continue;
        char *value = malloc(t->size + 1);
        if (t->size) fseek(recorded, starts[t - net_tensors], SEEK_SET);
        if (fread(value, 1, t->size, recorded) != t->size) return 1;
        if (i >= n->operand_count) memcpy(address(t), value, t->size);
        else if (memcmp(address(t), value, t->size)) { fprintf(stderr, "%s of %s differs\\n", t->name, n->name); return 1; }
        free(value);
    }
    return 0;
}
"""


def compiled(folder: Path, plan: PlanJson, *options: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    (folder / "net.h").write_bytes(FORMAT.render(plan, RenderOptions("net")))
    command = [
        "gcc",
        "-std=c99",
        "-O2",
        *WARNINGS,
        *options,
        f"-I{folder}",
        str(ROOT / "tests" / "report" / "runtime.c"),
        "-lm",
    ]
    return subprocess.run([*command, "-o", "run"], cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def ran(folder: Path, planned: PlannedModel, inputs: list[Array]) -> subprocess.CompletedProcess[str]:
    (folder / "net.bin").write_bytes(planned.constant_block())
    (folder / "input.bin").write_bytes(b"".join(array.tobytes() for array in inputs))
    files = ["net.bin", "input.bin", "output.bin"]
    return subprocess.run(
        [folder / "run", *files], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


def image() -> Array:
    return np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)


def computed(path: Path) -> Array:
    session = Session(path)
    result: Array = session.run({"image": image()})[session.outputs[0]]
    return result


@pytest.mark.parametrize("io", ["outputs", "inside", "outside"])
def test_the_example_computes_what_onnxruntime_computes(io: str, transformer: Path, tmp_path: Path) -> None:
    planned = onnxtile.plan(transformer, verify=False, io=io)
    build = compiled(tmp_path, planned.plan.to_dict())
    assert build.returncode == 0, build.stderr
    run = ran(tmp_path, planned, [image()])
    assert run.returncode == 0, run.stderr
    wanted = computed(transformer)
    got = np.fromfile(tmp_path / "output.bin", np.float32).reshape(wanted.shape)
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_wrong_offset_is_seen_in_the_outputs(transformer: Path, tmp_path: Path) -> None:
    planned = onnxtile.plan(transformer, verify=False)
    plan = copy.deepcopy(planned.plan.to_dict())
    row = next(row for row in plan["buffers"] if row["first"] <= plan["peak_step"] < row["last"] and not row["alias"])
    row["offset"] = 64 if row["offset"] == 0 else 0
    assert compiled(tmp_path, plan).returncode == 0
    assert ran(tmp_path, planned, [image()]).returncode == 0
    wanted = computed(transformer)
    got = np.fromfile(tmp_path / "output.bin", np.float32).reshape(wanted.shape)
    assert not np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_an_operator_without_a_kernel_is_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { a = Cos(x) y = Relu(a) }'
    )
    planned = onnxtile.plan(model, verify=False)
    assert compiled(tmp_path, planned.plan.to_dict()).returncode == 0
    run = ran(tmp_path, planned, [np.zeros(2, np.float32)])
    assert (run.returncode, run.stderr) == (1, "node a: no kernel for Cos\n")


def recorded(path: Path, feeds: dict[str, Array]) -> dict[str, bytes]:
    """Return the bytes of every value of the model in `path`, from one run of onnxruntime."""
    model = onnx.load(path)
    known = {value.name for value in model.graph.output}
    made = (name for node in model.graph.node for name in node.output if name not in known)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    values = {**Session(model.SerializeToString()).run(feeds), **feeds}
    return {name: value.tobytes() for name, value in values.items()}


def write_recorded(folder: Path, plan: PlanJson, values: dict[str, bytes]) -> None:
    """Write the values of the tensors of `plan` one after the other, and the kernel that replays them with the start of each."""
    starts, end = [], 0
    with (folder / "recorded.bin").open("wb") as file:
        for value in run_table(plan).values:
            data = values.get(value.name)
            starts.append(-1 if data is None else end)
            end += file.write(data or b"")
    listed = ", ".join(map(str, starts))
    (folder / "replay.h").write_text(f"static const long starts[] = {{{listed}}};\n{REPLAY}")


@pytest.mark.parametrize("name", ["classifier", "squeezenet", "fused", "shifted"])
def test_every_operand_is_where_the_table_says(
    name: str,
    transformer: Path,
    rapidocr: Callable[[str], Path],
    light: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    path = {"classifier": rapidocr("ch_ppocr_mobile_v2.0_cls_infer"), "squeezenet": light("squeezenet")}.get(
        name, transformer
    )
    graph = onnx.load(path, load_external_data=False).graph
    shapes = {"x": "1x3x48x96"} if name == "classifier" else None
    read = onnxtile.fuse(path, verify=False).model if name == "fused" else path
    planned = onnxtile.plan(read, shapes=shapes, verify=False)
    plan = planned.plan.to_dict()
    random = np.random.default_rng(0)
    feeds = {row["name"]: random.standard_normal(row["shape"]).astype(np.float32) for row in plan["inputs"]}
    assert [row["name"] for row in plan["outputs"]] == [value.name for value in graph.output]
    write_recorded(tmp_path, plan, recorded(path, feeds))
    if name == "shifted":  # two tensors that are live at once, at one place
        live = [row for row in plan["buffers"] if row["first"] <= plan["peak_step"] <= row["last"]]
        first, second = [row for row in live if not row["alias"]][:2]
        second["offset"] = first["offset"]
    build = compiled(tmp_path, plan, '-DKERNELS="replay.h"')
    assert build.returncode == 0, build.stderr
    run = ran(tmp_path, planned, list(feeds.values()))
    assert run.returncode == (name == "shifted"), run.stderr
    assert ("differs" in run.stderr) == (name == "shifted")
