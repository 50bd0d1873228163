"""The C header: a compiler takes it with all warnings as errors, its table is the plan, and it runs a model."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtile
from onnxtile import api
from onnxtile.report.format import PlanJson, RenderOptions
from onnxtile.report.formats.to_header import FORMAT, TYPES, comment, identifiers, literal, run_table
from onnxtile.system.runtime import Array, Session
from onnxtile.verbs.flows.results import PlannedModel
from tests.conftest import ROOT
from tests.planning.test_bodies import ODD
from tests.report.conftest import Plan, bare, row

# The C header: a compiler takes it with all warnings as errors, its table is the plan, and what is wrong does not
# compile.


WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
LANGUAGES = {
    "c99": ("gcc", ".c"),
    "c11": ("gcc", ".c"),
    "c2x": ("gcc", ".c"),
    "c++11": ("g++", ".cc"),
    "c++20": ("g++", ".cc"),
}

PRINTS_ITS_TABLE = """
#include "net.h"
#include "net.h"
#include <stdio.h>
int main(void) {
  printf("%u %u\\n", NET_ALIGNMENT, NET_ARENA_COUNT);
  for (size_t i = 0; i < NET_TENSOR_COUNT; ++i) {
    const struct net_tensor *t = &net_tensors[i];
    printf("%zu %zu %lu %lu %lu\\n", t->offset, t->size, (unsigned long)t->first, (unsigned long)t->last, (unsigned long)t->arena);
  }
  return 0;
}
"""


def compiled(
    folder: Path, header: bytes, language: str, program: str = PRINTS_ITS_TABLE
) -> subprocess.CompletedProcess[str]:
    compiler, ending = LANGUAGES[language]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    (folder / "net.h").write_bytes(header)
    source = folder / f"main{ending}"
    source.write_text(program)
    command = [compiler, f"-std={language}", *WARNINGS, source.name, "-o", "main"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def table(folder: Path, header: bytes, language: str) -> list[tuple[int, ...]]:
    """Return what the compiled header says: alignment and number of arenas, then a line for each tensor."""
    result = compiled(folder, header, language)
    assert result.returncode == 0, result.stderr
    run = subprocess.run([folder / "main"], capture_output=True, text=True, check=True, timeout=60)
    return [tuple(map(int, line.split())) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_table_is_the_plan(language: str, plan: Plan, tmp_path: Path) -> None:
    facts, *lines = table(tmp_path, FORMAT.render(plan, RenderOptions("net")), language)
    assert facts == (plan["alignment"], 1)
    assert [line[2] for line in lines] == sorted(line[2] for line in lines)
    wanted = [(b["offset"], b["size"], b["first"], b["last"], 0) for b in plan["buffers"]]
    assert sorted(lines) == sorted(wanted)


@pytest.mark.parametrize("language", ["c99", "c++11"])
def test_an_index_finds_type_and_shape(language: str, plan: Plan, tmp_path: Path) -> None:
    names = identifiers(b["name"] for b in sorted(plan["buffers"], key=lambda b: (b["first"], b["last"])))
    buffers = dict(zip(names, sorted(plan["buffers"], key=lambda b: (b["first"], b["last"])), strict=True))
    prints = "".join(
        f'  t = &net_tensors[NET_I_{name}];\n  printf("%d %d", (int)t->type, t->rank);\n'
        '  for (int i = 0; i < t->rank; ++i) printf(" %lu", (unsigned long)t->shape[i]);\n  printf("\\n");\n'
        for name in names
    )
    program = f'#include "net.h"\n#include <stdio.h>\nint main(void) {{\n  const struct net_tensor *t;\n{prints}  return 0;\n}}\n'
    result = compiled(tmp_path, FORMAT.render(plan, RenderOptions("net")), language, program)
    assert result.returncode == 0, result.stderr
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=60).stdout
    for line, name in zip(said.splitlines(), names, strict=True):
        shape = buffers[name]["shape"]
        number = onnx.TensorProto.DataType.Value(buffers[name]["dtype"])
        assert list(map(int, line.split())) == [number, len(shape), *shape]


def test_element_types_have_their_numbers_in_onnx() -> None:
    for name, number in onnx.TensorProto.DataType.items():
        assert name == "UNDEFINED" or TYPES[number] == name


@pytest.mark.parametrize("language", ["c90", "c++98"])
def test_an_older_language_is_refused_in_words(language: str, tmp_path: Path) -> None:
    compiler, ending = LANGUAGES["c99" if language == "c90" else "c++11"]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    (tmp_path / "net.h").write_bytes(FORMAT.render(bare([]), RenderOptions("net")))
    (tmp_path / f"main{ending}").write_text('#include "net.h"\n')
    command = [compiler, f"-std={language}", "-fsyntax-only", f"main{ending}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode != 0
    assert "this header needs C" in result.stderr


@pytest.mark.parametrize(("language", "alignment"), [("c99", 1), ("c11", 2), ("c++11", 64)])
def test_the_arena_is_aligned_to_the_largest_of_its_elements(language: str, alignment: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{ODD}')
    made = api.plan(model, alignment=alignment).plan.to_dict()
    facts, *lines = table(tmp_path, FORMAT.render(made, RenderOptions("net")), language)
    assert facts == (max(alignment, 8), 1)
    assert any(offset % 8 for offset, *_ in lines) == (alignment < 8)


@pytest.mark.parametrize("language", ["c99", "c11", "c++11"])
def test_odd_names_two_arenas_and_large_numbers(language: str, odd: Plan, tmp_path: Path) -> None:
    facts, *lines = table(tmp_path, FORMAT.render(odd, RenderOptions("net")), language)
    assert facts == (8, 2)
    assert len(lines) == len(odd["buffers"])
    assert (1 << 33, 1 << 32, 0, 1, 1) in lines


@pytest.mark.parametrize("language", ["c99", "c11", "c++11"])
def test_arenas_whose_names_are_like_other_macros(language: str, tmp_path: Path) -> None:
    names = ["a", "a_size", "A size", "count", "size", "arena", "int", "é"]
    rows = [{**row(name, 0, 64, 0, 1), "arena": name} for name in names]
    plan = {**bare(rows), "arenas": [{"name": name, "size": 64, "capacity": None} for name in names]}
    facts, *lines = table(tmp_path, FORMAT.render(plan, RenderOptions("net")), language)
    assert facts[1] == len(names)
    assert sorted(line[-1] for line in lines) == list(range(len(names)))


@pytest.mark.parametrize("language", ["c99", "c11", "c++11"])
def test_a_plan_that_is_wrong_does_not_compile(language: str, tmp_path: Path) -> None:
    sound = bare([row("a", 0, 64, 0, 1), row("b", 64, 64, 0, 1)], alignment=64)
    assert compiled(tmp_path, FORMAT.render(sound, RenderOptions("net")), language).returncode == 0
    for change, message in (
        ({"offset": 64 * 3}, "is_inside_its_arena"),
        ({"offset": 2}, "is_aligned"),
        ({"size": 2**64 - 1, "offset": 64}, "is_inside"),
    ):
        wrong = {**sound, "buffers": [sound["buffers"][0], {**sound["buffers"][1], **change}]}
        result = compiled(tmp_path, FORMAT.render(wrong, RenderOptions("net")), language)
        assert result.returncode != 0
        assert message in result.stderr


def test_the_macros_say_offset_size_and_arena(plan: Plan) -> None:
    text = FORMAT.render(plan, RenderOptions("my net-2")).decode()
    first = plan["buffers"][0]
    assert "#define MY_NET_2_ARENA_SIZE MY_NET_2_ARENA_ARENA_SIZE" in text
    assert f"#define MY_NET_2_ARENA_ARENA_SIZE {plan['arenas'][0]['size']}u" in text
    name = f"MY_NET_2_T_{identifiers([first['name']])[0]}"
    assert f"#define {name}_OFFSET {first['offset']}u" in text
    assert f"#define {name}_SIZE {first['size']}u" in text


def test_constants_with_offsets_have_macros() -> None:
    constants = [{"name": "w/1", "size": 12, "offset": 64}, {"name": "s", "size": None}]
    text = FORMAT.render(bare([], constants=constants), RenderOptions("net")).decode()
    assert "#define NET_C_w_1_OFFSET 64u" in text
    assert "NET_C_s" not in text


def test_a_file_that_begins_with_a_digit() -> None:
    assert b"#ifndef PLAN_3D_NET_H" in FORMAT.render(bare([]), RenderOptions("3d net"))


def test_identifiers_differ_whatever_the_names() -> None:
    names = ["a.b", "a/b", "a_b_1", "a b", "", "_", "é", "x" * 99 + "1", "x" * 99 + "2", "A.b"]
    made = identifiers(names)
    assert len(set(made)) == len(names)
    assert all(one.isascii() and one.replace("_", "").isalnum() for one in made)
    assert identifiers(["plain", "Name_2"]) == ["plain", "Name_2"]
    assert max(map(len, made)) <= 44


ATTRIBUTES = """
#include "net.h"
#include <stdio.h>
int main(void) {
  for (uint32_t i = 0; i < net_nodes[0].attribute_count; ++i) {
    const struct net_attribute *a = &net_attributes[net_nodes[0].first_attribute + i];
    printf("%s", a->name);
    for (uint32_t k = a->first; k < a->first + a->count; ++k) {
      if (a->kind == NET_INTS) printf(" %lld", (long long)net_ints[k]);
      if (a->kind == NET_FLOATS) printf(" %g", net_floats[k]);
      if (a->kind == NET_TEXTS) printf(" [%s]", net_texts[k]);
    }
    printf("\\n");
  }
  printf("%s %s %d\\n", net_nodes[0].domain, net_nodes[0].op_type, (int)net_links[net_nodes[0].first_operand + 1]);
  return 0;
}
"""


@pytest.mark.parametrize("language", LANGUAGES)
def test_nodes_have_their_attributes_and_absent_operands(language: str, tmp_path: Path) -> None:
    attributes = {
        "ints": [1, -(2**63), 2**63 - 1],
        "float": 0.1,
        "floats": [1.0, "inf", "-inf"],
        "texts": ['a"b\\', "??/", "é"],
        "none": [],
    }
    plan = bare(
        [row("y", 0, 4, 0, 0)],
        schedule=["node"],
        operators=["a.b::Odd"],
        operands=[["x", ""]],
        results=[["y"]],
        attributes=[attributes],
    )
    result = compiled(tmp_path, FORMAT.render(plan, RenderOptions("net")), language, ATTRIBUTES)
    assert result.returncode == 0, result.stderr
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines() == [
        "ints 1 -9223372036854775808 9223372036854775807",
        "float 0.1",
        "floats 1 inf -inf",
        'texts [a"b\\] [??/] [é]',
        "none",
        "a.b Odd -1",
    ]


@pytest.mark.parametrize("language", ["c99", "c++11"])
def test_very_long_names_compile(language: str, tmp_path: Path) -> None:
    plan = bare([row("n" * 9000, 0, 4, 0, 0)])
    assert (
        compiled(
            tmp_path,
            FORMAT.render(plan, RenderOptions("net")),
            language,
            '#include "net.h"\nint main(void) { return 0; }\n',
        ).returncode
        == 0
    )


# Names of models in C sources: they stay what they are, and no comment around or inside them changes what is
# compiled.


NAMES = ("*/ canary /*", "/*", "*/", "/*/", "**//", "*/0", "a\x1bb", 'say "x"', "??/", "\\", "é\u202e", "\udcff")


def text_of(c_literal: str) -> bytes:
    """Return the bytes that a C compiler reads in `c_literal`."""
    inner = c_literal[1:-1].encode()
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), inner)


@pytest.mark.parametrize("name", NAMES)
def test_a_literal_is_the_text_and_may_stand_in_a_comment(name: str) -> None:
    made = literal(name)
    assert text_of(made) == name.encode(errors="surrogatepass")
    assert "*/" not in made and "/*" not in made and made.isascii() and made.isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_a_comment_neither_ends_nor_begins_another(name: str) -> None:
    made = comment(name)
    assert "*/" not in made and "/*" not in made and made.isprintable() and "\\" not in made


# The tables of the C header run a model: an example beside this file, compiled, computes what onnxruntime computes.

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


def compiled_runtime(folder: Path, plan: PlanJson, *options: str) -> subprocess.CompletedProcess[str]:
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
    build = compiled_runtime(tmp_path, planned.plan.to_dict())
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
    assert compiled_runtime(tmp_path, plan).returncode == 0
    assert ran(tmp_path, planned, [image()]).returncode == 0
    wanted = computed(transformer)
    got = np.fromfile(tmp_path / "output.bin", np.float32).reshape(wanted.shape)
    assert not np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_an_operator_without_a_kernel_is_named(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { a = Cos(x) y = Relu(a) }'
    )
    planned = onnxtile.plan(model, verify=False)
    assert compiled_runtime(tmp_path, planned.plan.to_dict()).returncode == 0
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
    build = compiled_runtime(tmp_path, plan, '-DKERNELS="replay.h"')
    assert build.returncode == 0, build.stderr
    run = ran(tmp_path, planned, list(feeds.values()))
    assert run.returncode == (name == "shifted"), run.stderr
    assert ("differs" in run.stderr) == (name == "shifted")
