"""Programs in C compile without a warning, run at the planned addresses, and compute what onnxruntime computes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile import cli
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.verbs.flows.results import PlannedModel
from tests.build import model as model_of
from tests.build import parsed
from tests.conftest import ROOT

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware.build import Firmware, ProgramTarget, build
from onnxtile.firmware.prove import compared, compiler, output_of, runs_of

needs_cc = pytest.mark.skipif(compiler() is None, reason="there is no C compiler")
STRICT = ("-Wall", "-Wextra", "-Werror", "-Wvla", "-Wstrict-prototypes", "-c", "net.c", "-o", "net.o")


def opened_of(planned: PlannedModel) -> Unfolded:
    return unfold(planned.model, resolve(planned.model, run=True), Constants(planned.model))


def built(model: onnx.ModelProto | Path, **options: Any) -> Firmware:
    planned = onnxtile.plan(model, verify=False, **options)
    return build(opened_of(planned), planned.plan)


def network(size: int = 12) -> onnx.ModelProto:
    """Two layers of convolutions of one form, views, a join, a residual and a head."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["pixels", "w1", "b1"], ["c1"], "conv 1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b1"], ["c2"], "conv 2", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Clip", ["c2", "low", "high"], ["r2"]),
        helper.make_node("Conv", ["r2", "w2", "b1"], ["c3"], "conv 3", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r2", "c3"], ["sum"]),
        helper.make_node("Concat", ["sum", "c3"], ["both"], axis=1),
        helper.make_node("Split", ["both", "halves"], ["first", "second"], axis=1),
        helper.make_node("Mul", ["first", "second"], ["product"]),
        helper.make_node("GlobalAveragePool", ["product"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["class probabilities"], axis=1),
    ]
    held = [weight("w1", 6, 3, 3, 3), weight("b1", 6), weight("w2", 6, 6, 3, 3), weight("w3", 6, 5), weight("b3", 5)]
    held += [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in (("low", 0), ("high", 6))]
    held += [numpy_helper.from_array(np.asarray([6, 6], np.int64), "halves")]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("class probabilities", TensorProto.FLOAT, [1, 5])],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@cache
def firmware_of(io: str) -> Firmware:
    """Return the program of the network with its inputs and outputs at a place."""
    return built(network(), io=io)


@needs_cc
@pytest.mark.parametrize("io", ["outputs", "inside", "outside"])
def test_a_network_runs_wherever_its_inputs_and_outputs_are(io: str) -> None:
    made = firmware_of(io)
    assert made.proof.equal and made.proof.runs == 3 and made.proof.not_run is None
    header = made.source.named("net").header
    assert ("net_input_pixels(void)" in header) == (io == "inside")
    assert ("net_output_class_probabilities(void)" in header) == (io != "outside")


@needs_cc
@pytest.mark.parametrize(("ir_version", "inputs"), [(3, ["x"]), (8, ["x", "w"])])
def test_constants_listed_as_inputs_are_inputs_of_the_program_where_a_caller_may_override_them(
    ir_version: int, inputs: list[str]
) -> None:
    text = f'<ir_version: {ir_version}, opset_import: ["": 9]> g (float[2, 3] x, float[3] w) => (float[2, 3] y)'
    made = built(onnx.parser.parse_model(f"{text} <float[3] w = {{1, 2, 3}}> {{ a = Mul(x, w) y = Relu(a) }}"))
    taken = re.search(r"net_run\((.*)\)", made.source.named("net").header)
    assert made.proof.equal and taken is not None and re.findall(r"\*(\w+)", taken[1]) == inputs


@needs_cc
@pytest.mark.parametrize("io", ["outputs", "outside"])
def test_an_output_that_the_graph_has_twice_has_two_names(io: str) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> twice (float[6] x) => (float[6] y, float[6] y) { y = Relu(x) }'
    proof = built(onnx.parser.parse_model(text), io=io).proof
    assert proof.equal and not proof.not_run


@needs_cc
def test_convolutions_that_do_little_of_the_work_each_are_one_function() -> None:
    nodes = "\n".join(f"c{number + 1} = Conv(c{number}, w)" for number in range(80))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[1,1,300,300] c0) => (float[1,1,220,220] c80) '
        f"<float[1,1,2,2] w = {{0.25, 0.25, 0.25, 0.25}}> {{ {nodes} }}"
    )
    source = built(model).source
    assert source.kernels == 80 and source.functions == 1


@needs_cc
def test_convolutions_that_do_much_of_the_work_have_their_sizes_as_constants() -> None:
    code = firmware_of("outputs").source.code
    assert code.count("row_end = ") == 3
    assert re.findall(r"filter = i1 \+ o \* (\w+) \*", code) == ["3", "6", "6"]


def test_a_file_takes_the_names_of_its_title_and_has_its_header_beside_it(tmp_path: Path) -> None:
    onnxtile.plan(network(), verify=False).write(tmp_path / "my-net.2.c")
    code, header = (tmp_path / "my-net.2.c").read_text(), (tmp_path / "my-net.2.h").read_text()
    assert '#include "my-net.2.h"' in code and "void my_net_2_run(const float *pixels);" in header
    assert "malloc" not in code and "stdio" not in code and "onnxtile_net" not in code + header


@needs_cc
def test_a_program_that_a_plan_writes_runs_on_the_inputs_of_the_plan(tmp_path: Path) -> None:
    model = parsed("agraph (float[1,3] x, int64[2] sizes) => (float[4,3] y) { y = Expand (x, sizes) }")
    np.savez(tmp_path / "inputs.npz", x=np.ones((1, 3), np.float32), sizes=np.array([4, 3]))
    onnxtile.plan(model, inputs=tmp_path / "inputs.npz").write(tmp_path / "net.c")
    assert "net_run(const float *x, const int64_t *sizes" in (tmp_path / "net.h").read_text()


def test_the_same_plan_gives_the_same_bytes() -> None:
    planned = onnxtile.plan(network(), verify=False)
    files = [build(opened_of(planned), planned.plan, verify=False).files("net") for _ in range(2)]
    assert files[0] == files[1]


@needs_cc
def test_a_tensor_at_a_wrong_address_is_noticed() -> None:
    planned = onnxtile.plan(network(), verify=False, io="inside")
    plan = planned.plan
    rows = tuple(replace(row, offset=0, alias=None) if row.name == "r2" else row for row in plan.buffers)
    rows = tuple(replace(row, offset=0) if row.name == "c3" else row for row in rows)
    with pytest.raises(Mismatch, match=r"the program in C does not compute|writes outside"):
        build(opened_of(planned), replace(plan, buffers=rows))


@needs_cc
def test_a_write_outside_the_arena_is_noticed() -> None:
    planned = onnxtile.plan(network(), verify=False)
    arena = planned.plan.arenas[0]
    with pytest.raises(Mismatch, match="writes outside its memory"):
        build(opened_of(planned), replace(planned.plan, arenas=(replace(arena, size=arena.size - 64),)))


@needs_cc
def test_two_memories_are_two_arrays() -> None:
    made = built(network(), capacity={"sram": 8192, "dram": 65536})
    assert [name for name, _, _ in made.source.interface.arenas] == ["sram", "dram"]
    header = made.source.named("net").header
    assert "NET_ARENA_SRAM_SIZE" in header and "NET_ARENA_DRAM_SECTION" in header


@needs_cc
def test_meta_ops_run_with_their_temporaries_in_a_workspace(shallow: Path) -> None:
    fused = onnxtile.fuse(shallow, verify=False)
    planned = fused.plan(verify=False)
    made = build(opened_of(planned), planned.plan)
    assert made.proof.equal and made.source.workspace > 0


@needs_cc
def test_functions_of_the_model_run_at_the_addresses_of_their_body() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17, "own": 1]>
        g (float[4, 6] x) => (float[4, 6] y) {
            a = own.twice(x)
            y = own.twice(a)
        }
        <domain: "own", opset_import: ["": 17]>
        twice (x) => (y) {
            s = Sigmoid(x)
            t = Softmax <axis = 1> (s)
            y = Add(s, t)
        }"""
    )
    assert built(model).proof.equal


@needs_cc
@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_is_chosen_by_its_condition(condition: bool) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[4] x, bool b) => (float[4] y, float[4] z) {
            a = Neg(x)
            s, t = If(b) <
                then_branch = f () => (float[4] p, float[4] q) { p = Exp(a) o = Relu(x) q = Add(o, p) },
                else_branch = h () => (float[4] p, float[4] q) { p = Abs(x) q = Softmax(x) }
            >
            y = Mul(s, t)
            z = Sub(t, a)
        }"""
    )
    inputs = {"x": np.arange(4, dtype=np.float32), "b": np.asarray(condition)}
    planned = onnxtile.plan(model, verify=False)
    assert build(opened_of(planned), planned.plan, wanted=Wanted(inputs)).proof.equal


@needs_cc
@pytest.mark.parametrize("io", ["inside", "outside"])
def test_any_name_of_a_tensor_is_an_identifier(io: str) -> None:
    names = ["y */ #error", "float", "bases", "uint8_t", "NULL", "9", "\n", "ü", "x.x"]
    nodes = [helper.make_node("Neg", ["x_x"], [name]) for name in names]
    made = built(model_of(nodes, {"x_x": [3]}, {name: [3] for name in names}), io=io)
    assert made.proof.equal and len(made.proof.outputs) == len(names)


@needs_cc
@pytest.mark.parametrize(
    ("shape", "body"),
    [
        ("2, 3", "y = Reshape(x, s)"),
        ("3, 2", "r = Reshape(x, s) y = Transpose <perm = [1, 0]> (r)"),
        ("6", "y = Tile(x, one)"),
        (
            "6",
            "y = If(t) <then_branch = f () => (float[6] p) { p = Neg(x) }, else_branch = h () => (float[6] q) { q = Abs(x) }>",
        ),
    ],
)
def test_graphs_with_few_kernels_or_none(shape: str, body: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[6] x) => (float[{shape}] y) <int64[2] s = {{2, 3}}, int64[1] one = {{1}}, bool t = {{1}}> {{ {body} }}"""
    )
    assert built(model).proof.equal


@needs_cc
def test_a_model_without_inputs() -> None:
    model = parsed("agraph () => (float[2] y) <float[2] w = {1, 2}> { y = Neg (w) }")
    assert built(model).proof.equal


RECURRENT = """<ir_version: 10, opset_import: ["": 17]>
g (float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] next) {
    s = Add(x, h)
    next = Tanh(s)
    y = Mul(next, x)
}"""


@needs_cc
def test_a_state_keeps_its_address_from_run_to_run() -> None:
    made = built(onnx.parser.parse_model(RECURRENT), state={"h": "next"})
    header = made.source.named("net").header
    assert made.proof.equal and made.proof.runs == 64 and "void net_reset(void);" in header
    assert "void net_run(const float *x);" in header


@needs_cc
def test_a_fitted_model_has_its_weights_once_and_few_functions() -> None:
    nodes = [
        "a = Conv <pads = [1, 1, 1, 1]> (x, w)",
        "b = Relu(a)",
        "c = Conv <pads = [1, 1, 1, 1]> (b, v)",
        "y = MaxPool <kernel_shape = [8, 8], strides = [8, 8]> (c)",
    ]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[1, 3, 64, 64] x) => (float[1, 4, 8, 8] y) {{ {" ".join(nodes)} }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8, 3, 3))):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    fitted = onnxtile.fit(model, capacity="40KiB", budget="30%", verify=False)
    planned = fitted.planned
    made = build(planned.opened, planned.plan)
    plain = built(model)
    assert made.proof.equal and made.source.calls > plain.source.calls
    assert made.source.weights <= plain.source.weights * 1.02
    # Ten kernels of strips do at least 2 % of the work each, and have functions of their own.
    assert made.source.kernels == 26 and made.source.functions <= plain.source.functions + 10


@needs_cc
def test_weights_in_a_file_are_no_text_and_give_the_same_outputs(tmp_path: Path) -> None:
    planned = onnxtile.plan(network(), verify=False)
    inside, beside = (
        firmware_of("outputs"),
        build(opened_of(planned), planned.plan, target=ProgramTarget(weights="file")),
    )
    assert beside.proof.equal and beside.proof.runs == 3
    assert len(beside.source.weights_file) == inside.source.weights == beside.source.weights > 0
    assert len(beside.source.code) < len(inside.source.code) and "weights_32[]" not in beside.source.code
    assert inside.files("net").keys() == {".c", ".h"}
    planned.write(tmp_path / "my-net.c", target={"weights": "file"})
    assert (tmp_path / "my-net.weights.bin").read_bytes() == beside.source.weights_file
    header = (tmp_path / "my-net.h").read_text()
    assert "extern const uint8_t *my_net_weights;" in header
    assert f"#define MY_NET_WEIGHTS_SIZE {inside.source.weights}u /* bytes of my-net.weights.bin" in header


@needs_cc
def test_a_changed_weight_in_the_file_is_noticed() -> None:
    planned = onnxtile.plan(network(), verify=False)
    opened = opened_of(planned)
    made = build(opened, planned.plan, target=ProgramTarget(weights="file"))
    changed = bytes(~byte & 127 for byte in made.source.weights_file)
    tools = ProgramTarget().tools()
    assert tools is not None
    source, runs = replace(made.source, weights_file=changed), list(runs_of(opened, planned.plan, Wanted(), 1))
    assert not compared(source, runs, output_of(source, runs, tools), tools).equal


FIXED = {
    "float[2, 3]": "<int64 axis = {1}> { y = CumSum(x, axis) }",
    "float[3, 3]": "<int64 k = {1}> { y = Trilu(x, k) }",
    "float[1, 1, 4, 4]": """<float[8] part = {0, 0, 0.2, 0.2, 1, 1, 0.8, 0.9}, int64[4] sizes = {1, 1, 6, 6}> {
        y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"> (x, part, , sizes)
    }""",
    "int64[3]": "<int64[3] data = {4, 5, 6}> { y = Add(x, data) }",
}


@needs_cc
@pytest.mark.parametrize("kind", FIXED)
def test_operands_that_say_what_is_computed_need_not_be_read_and_others_are_weights(kind: str) -> None:
    result = kind.replace("4, 4", "6, 6")
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]> g ({kind} x) => ({result} y) {FIXED[kind]}"""
    )
    made = built(model)
    read = {"float[1, 1, 4, 4]": 64, "int64[3]": 24}  # emx-onnx-cgen reads the part and the sizes of a Resize in a run
    assert made.proof.equal and made.source.weights == read.get(kind, 0)


@needs_cc
def test_a_slice_up_to_a_number_beyond_32_bits_ends_with_the_axis() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[2, 6] x, int64[1] start) => (float[2, 2] y) <int64[1] end = {2147483648}, int64[1] axis = {1}, int64[1] step = {2}> {
            s = Selu(x)
            y = Slice(s, start, end, axis, step)
        }"""
    )
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(2, 6), "start": np.asarray([3])}
    planned = onnxtile.plan(model, verify=False)
    assert build(opened_of(planned), planned.plan, wanted=Wanted(inputs)).proof.equal


def test_a_graph_that_hands_out_its_input_and_a_constant_copies_them() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[3] x) => (float[3] y, float[2] k, float[3] z)
        <float[2] c = {1.5, 2.5}> {
            y = Identity(x)
            k = Identity(c)
            z = Neg(x)
        }"""
    )
    for io in ("outputs", "inside", "outside"):
        assert built(model, io=io).proof.equal


# What cannot be written is one line, before anything is.


def test_what_no_c_is_for_is_named_with_its_node() -> None:
    with pytest.raises(UsageError, match="draws random numbers"):
        built(parsed("g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }"))


def test_an_operator_that_emx_lacks_is_named_with_its_node() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y) { y = LpNormalization(x) }"""
    )
    model.graph.node[0].name = "the node"
    from onnxtile.firmware import kernels
    from onnxtile.firmware.program import kernels_of
    from onnxtile.firmware.steps import program_of

    planned = onnxtile.plan(model, verify=False)
    found = [
        replace(kernel, op_type="Unheard") for kernel in kernels_of(program_of(opened_of(planned), planned.plan).calls)
    ]
    with pytest.raises(UsageError, match=r"'the node' .Unheard.: emx-onnx-cgen has no Unheard"):
        kernels.require_operators(found)


def test_strings_have_no_fixed_bytes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (string[2] x, float[2] a) => (string[2] y, float[2] b) { y = Identity(x) b = Neg(a) }'
    )
    with pytest.raises(UsageError, match=r"fixed bytes|elements of STRING"):
        built(model)


# Programs on a target.

M7 = "-mcpu=cortex-m7 -mfpu=fpv5-d16 -mfloat-abi=hard", "mps2-an500"
M4 = "-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard", "mps2-an386"


def emulated(options: str, board: str) -> ProgramTarget:
    """Return the compiler and the emulator of a `board`; skip the test where they are not installed."""
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("the tools for Arm are not installed")
    folder = ROOT / "docs" / "firmware"
    command = f"arm-none-eabi-gcc {options} --specs=rdimon.specs -nostartfiles -T {folder}/{board}.ld {folder}/start.c"
    return ProgramTarget(
        command, f"qemu-system-arm -M {board} -display none -serial none -monitor none -semihosting -kernel"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("options", "board"), [M7, M4])
@pytest.mark.usefixtures("footprint")
def test_a_program_runs_on_a_microcontroller(options: str, board: str) -> None:
    for model in (network(), ROOT / "models" / "transformer.onnx"):
        planned = onnxtile.plan(model, verify=False)
        made = build(opened_of(planned), planned.plan, target=emulated(options, board))
        assert made.proof.equal and made.proof.runs == 3
        assert made.footprint is not None and made.footprint.code < 8192


# The commands.


def arguments(folder: Path, *options: str) -> list[str]:
    onnx.save(network(), folder / "model.onnx")
    return ["onnxtile", "plan", str(folder / "model.onnx"), *options]


def ended(command: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(str(end.value.code))


@needs_cc
@pytest.mark.usefixtures("footprint")
def test_the_command_writes_both_files_and_tells_flash_and_ram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(tmp_path, "--emit", str(tmp_path / "net.c"), "--json", str(tmp_path / "r.json"))
    assert ended(command, monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "flash by" in printed and "the program in C ran 3 times beside onnxruntime" in printed
    assert (tmp_path / "net.c").exists() and (tmp_path / "net.h").exists()
    figures = json.loads((tmp_path / "r.json").read_text())["firmware"]
    assert figures["proof"]["runs"] == 3 and figures["footprint"]["ram"] >= figures["footprint"]["memory"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--emit", "net.c", "--target", 'runner = "qemu"'], "which is not given"),
        (["--emit", "net.c", "--target", 'weights = "both"'], "weights"),
        (["--emit", "net.c", "--emit", "net.h"], "leave one of the two out"),
        (["--emit", "net.c", "--json", "net.h"], "both name"),
        (["--emit", "net.c", "--target", 'cc = "no-such-compiler"'], "no-such-compiler"),
        (["--emit", "net.c", "--target", """cc = "'gcc" """], "is no command"),
        (["--emit", "net.c", "--target", 'cc = "gcc --no-such-option"\nrunner = "env"'], "the C compiler refuses"),
        (["--emit", "net.c", "--target", 'cc = "gcc --no-such-option"'], "the C compiler refuses the program"),
    ],
)
@pytest.mark.usefixtures("footprint")
def test_options_that_make_no_sense_are_one_line_and_write_nothing(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text after --target is that of a file."""
    monkeypatch.chdir(tmp_path)
    if "--target" in options:
        (tmp_path / "t.toml").write_text(options[-1])
        options = [*options[:-1], "t.toml"]
    assert ended(arguments(tmp_path, *options), monkeypatch) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("error: ") and message in told
    assert not (tmp_path / "net.c").exists() and not (tmp_path / "model.planned.onnx").exists()


@needs_cc
@pytest.mark.usefixtures("footprint")
def test_a_pipeline_bounds_ram_and_flash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = arguments(tmp_path)[2]
    command = ["onnxtile", "run", str(tmp_path / "p.toml"), model, "--json", str(tmp_path / "r.json")]

    def judged(budgets: str, emit: str = '["c"]', step: str = '"plan"') -> int:
        (tmp_path / "p.toml").write_text(
            f"[[steps]]\ndo = {step}\nemit = {emit}\nverify = false\n[budgets]\n{budgets}\n"
        )
        return ended(command, monkeypatch)

    assert judged('max_ram = "64KiB"\nmax_flash = "64KiB"') == 0
    assert (tmp_path / "model.p.plan.h").exists()
    assert '#include "model.p.plan.h"' in (tmp_path / "model.p.plan.c").read_text()
    found = json.loads((tmp_path / "r.json").read_text())["models"][0]
    ram, flash = found["figures"]["ram"], found["figures"]["flash"]
    assert 0 < found["figures"]["arena"] < ram < 65536 and 0 < flash < 65536
    assert judged(f"max_ram = {ram}\nmax_flash = {flash}") == 0
    assert judged(f"max_ram = {ram - 1}") == 1 and judged(f"max_flash = {flash - 1}") == 1
    fit = '"fit"\ncapacity = "64KiB"'
    assert judged(f"max_ram = {ram}\nmax_flash = {flash}", step=fit) == 0
    assert judged(f"max_flash = {flash - 1}", step=fit) == 1
    capsys.readouterr()
    assert judged("max_ram = 1", "[]") == 2
    assert "the budget 'max_ram' needs a step fit or plan that writes C" in capsys.readouterr().err
    monkeypatch.setattr("onnxtile.firmware.build.compiler", lambda: None)
    assert judged('max_ram = "64KiB"') == 1  # nobody has counted it


def test_fit_writes_no_program_of_what_does_not_fit_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = arguments(tmp_path)[2]
    monkeypatch.chdir(tmp_path)
    for steps in ("", 'emit = ["c", "json"]'):
        (tmp_path / "p.toml").write_text(f'[[steps]]\ndo = "fit"\ncapacity = 64\n{steps}\n')
        emit = ["--emit", "small.c", "--emit", "small.json"]
        command = (
            ["onnxtile", "run", "p.toml", model] if steps else ["onnxtile", "fit", model, "--capacity", "64", *emit]
        )
        assert ended(command, monkeypatch) == 1
        printed = capsys.readouterr()
        assert "nothing fits arena of 64 bytes" in printed.out + printed.err
    assert not list(tmp_path.glob("*.c")) and (tmp_path / "small.json").exists()


def test_the_compiler_of_a_package_is_taken_where_no_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.firmware import prove

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda *_: None)
    monkeypatch.setattr(prove, "find_spec", lambda name: name)
    assert compiler() == [sys.executable, "-m", "ziglang", "cc"]
    monkeypatch.setattr(prove, "find_spec", lambda *_: None)
    assert compiler() is None


def test_a_compiler_is_named_by_its_words_and_has_its_own_tool_for_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.firmware import build as building

    monkeypatch.setattr("shutil.which", lambda name: name)
    assert building._named(["/venv/bin/python", "-m", "ziglang", "cc"]) == ("python ziglang cc", "size")
    assert building._named(["ccache", "arm-none-eabi-gcc-13", "-O2"]) == (
        "ccache arm-none-eabi-gcc-13",
        "arm-none-eabi-size",
    )


@needs_cc
def test_without_a_compiler_a_program_is_written_and_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnxtile.firmware.build.compiler", lambda: None)
    assert ended(arguments(tmp_path, "--emit", str(tmp_path / "net.c")), monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "the program in C was not run: no C compiler is here" in printed
    assert "RAM without the stack" in printed and (tmp_path / "net.c").exists()


@needs_cc
def test_commands_and_pipelines_keep_weights_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = arguments(tmp_path)
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "plan"\nemit = ["c"]\ntarget = {weights = "file"}\n')
    assert ended(["onnxtile", "run", str(tmp_path / "p.toml"), command[2]], monkeypatch) == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text('weights = "file"\n')
    weights = ["--target", "t.toml"]
    assert ended([*command, "--emit", "net.c", *weights], monkeypatch) == 0
    assert ended(["onnxtile", "fit", command[2], "--capacity", "64KiB", "--emit", "fit.c", *weights], monkeypatch) == 0
    assert all((tmp_path / f"{name}.{ending}").exists() for name in ("net", "fit") for ending in ("c", "h"))
    files = [
        (tmp_path / name).read_bytes() for name in ("model.p.plan.weights.bin", "net.weights.bin", "fit.weights.bin")
    ]
    assert files[0] == files[1] and sorted(files[1]) == sorted(files[2])


@needs_cc
def test_floats_of_wild_inputs_say_how_to_limit_them() -> None:
    """A sine of large sums makes much of the last bits of these; inside the range of the model it does not."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[4, 200] x) => (float[4, 8] y) <float large = {10000}> {
            sum = MatMul(x, w)
            angle = Mul(sum, large)
            y = Sin(angle)
        }"""
    )
    weights = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    with pytest.raises(Mismatch, match="'y' is off by") as error:
        built(model)
    assert "--inputs INPUT=LOW:HIGH" in str(error.value.hint)
    planned = onnxtile.plan(model, verify=False)
    small = Wanted(ranges={"x": (-1e-6, 1e-6)})
    assert build(opened_of(planned), planned.plan, wanted=small).proof.equal


@needs_cc
def test_errors_of_rounding_that_grow_are_proved_on_smaller_inputs() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[4, 2000] x) => (float[4, 8] y) <float large = {20}, float three = {3}> {
            sum = MatMul(x, w)
            angle = Mul(sum, large)
            wave = Sin(angle)
            y = Add(wave, three)
        }"""
    )
    weights = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    proof = built(model).proof
    assert proof.equal and proof.results is None and proof.rounding > 3e-4 > proof.outputs[0].max_abs
    assert "(inputs from -0.125 to 0.125: on larger ones, errors of rounding grew to" in proof.summary
    planned = onnxtile.plan(model, verify=False)
    with pytest.raises(Mismatch, match="'y' is off by"):
        build(opened_of(planned), planned.plan, wanted=Wanted(ranges={"x": (-2, 2)}))
