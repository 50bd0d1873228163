"""One program in C runs at all sizes of a range, and its states grow from run to run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile import cli
from onnxtile.model.feeds import ANYTHING
from onnxtile.model.formula import SizeFormula
from onnxtile.system.errors import UsageError

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware import prove
from onnxtile.firmware.build import Firmware, ProgramTarget, build
from onnxtile.firmware.program import KernelCall, SizePoints, over_sizes
from onnxtile.firmware.prove import compared, output_of, runs_of
from onnxtile.firmware.steps import program_of
from tests.build import side_by_side
from tests.firmware.test_decoder import HEADS, WORDS, decoder, expected
from tests.firmware.test_program import M7, emulated, needs_cc
from tests.firmware.test_quantised import quantised

HEAD = '<ir_version: 10, opset_import: ["": 23]> '
SEQUENCE = """g (float[B, n, 8] x, int64[B, n] tokens, bool[B, n] keep) =>
    (float[B, n, 8] y, float[B, 1, 8] mean, float[B, 4, n, 2] heads) {
    taken = Gather(table, tokens)
    sum = Add(x, taken)
    normed = LayerNormalization(sum, scale)
    attended = Attention<q_num_heads = 4, kv_num_heads = 4, is_causal = 1>(normed, normed, normed)
    product = MatMul(attended, table)
    shape = Shape(keep)
    column = Unsqueeze(keep, last)
    y = Where(column, product, x)
    mean = ReduceMean(y, middle)
    whole = Concat<axis = 0>(shape, split)
    rows = Reshape(y, whole)
    heads = Transpose<perm = [0, 2, 1, 3]>(rows)
}"""
IMAGES = """g (float[1, 3, h, w] x) => (float[1, 4, a, b] y, float[1, 4, c, d] pooled, float[1, 4, e, f] larger, float[1, 3, h, w] padded) {
    y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, filter)
    pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(y)
    larger = Resize<mode = "nearest">(y, , factors)
    wide = Pad(x, ends)
    padded = AveragePool<kernel_shape = [3, 3]>(wide)
}"""
RECURRENT = """g (float[t, 1, 8] x, float[1, 1, 4] before) => (float[1, 1, 4] after, float[t, 1, 1, 4] y, float[t, 1, 1, 4] z) {
    y, after = GRU<hidden_size = 4>(x, gates, gates_of_state, , , before)
    z, last = LSTM<hidden_size = 4>(x, gates_of_cells, gates_of_cell_states)
}"""
CONSTANTS: dict[str, Any] = {
    **{"table": (8, 8), "scale": (8,), "filter": (4, 3, 3, 3), "gates": (1, 12, 8), "gates_of_state": (1, 12, 4)},
    **{"gates_of_cells": (1, 16, 8), "gates_of_cell_states": (1, 16, 4)},
    **{
        "groups": np.array([1, 2, 2, 1, 1]),
        "joined": np.array([1, 4, -1, 8]),
        "ones": np.ones(4, np.int64),
        "axis": np.array(2),
    },
    **{"last": np.array([2]), "middle": np.array([1]), "split": np.array([4, 2])},
    **{"factors": np.array([1, 1, 2, 2], np.float32), "ends": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
}


def model(text: str) -> onnx.ModelProto:
    """Return the model in `text`, with those of the constants that it names."""
    random, parsed = np.random.default_rng(0), onnx.parser.parse_model(HEAD + text)
    used = {name for node in parsed.graph.node for name in node.input}
    for name in (name for name in CONSTANTS if name in used):
        given = CONSTANTS[name]
        array = given if isinstance(given, np.ndarray) else random.standard_normal(given).astype(np.float32)
        parsed.graph.initializer.append(numpy_helper.from_array(array, name))
    return parsed


def built(proto: Any, dims: dict[str, str], **options: Any) -> Firmware:
    planned = onnxtile.plan(proto, verify=False, dims=dims, **options)
    return build(planned.opened(), planned.plan)


OVER_RANGES: list[tuple[str, dict[str, str], int]] = [
    (SEQUENCE, {"B": "1:3", "n": "1:8"}, 9),
    (IMAGES, {"h": "4:20", "w": "9:9"}, 7),
    (RECURRENT, {"t": "1:8"}, 64),
    ("g (float[a, b, c, d] x) => (float[a, b, c, d] y) { z = Neg(x) y = Exp(z) }", dict.fromkeys("abcd", "1:3"), 21),
]
"""Models, the ranges of their sizes, and the number of runs."""


@needs_cc
@pytest.mark.parametrize(
    ("text", "dims", "runs", "io"),
    [  # each is tried with one place of inputs, and with the other by --slow
        pytest.param(*case, io, marks=pytest.mark.slow if io == ("inside", "outside")[number % 2] else ())
        for number, case in enumerate(OVER_RANGES)
        for io in ("inside", "outside")
    ],
)
def test_a_program_runs_at_the_ends_of_its_ranges_and_between(
    text: str, dims: dict[str, str], runs: int, io: str
) -> None:
    made = built(model(text), dims, io=io, state="found")
    assert made.proof.equal and made.proof.runs == runs


def quantised_over_rows(form: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    proto.CopyFrom(quantised(form))
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    del proto.graph.value_info[:]
    return proto


@needs_cc
def test_results_a_step_off_are_compared_with_operators_on_integers_at_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prove, "_how", lambda *_: prove._STEP)
    made = built(quantised_over_rows("qdq"), {"rows": "8:12"})
    assert made.proof.results is not None and made.proof.results.integers >= made.proof.runs > 3


@needs_cc
@pytest.mark.parametrize("form", [pytest.param("qoperator", marks=pytest.mark.slow), "qdq"])
def test_a_quantised_network_runs_in_integers_at_all_sizes(form: str) -> None:
    made = built(quantised_over_rows(form), {"rows": "8:12"})
    assert made.proof.equal and made.proof.results is not None and made.proof.results.one_step == 0
    assert made.proof.results.count % made.proof.runs == 0 and made.proof.results.count > 3 * made.proof.runs


@needs_cc
def test_meta_ops_keep_the_workspace_of_the_largest_sizes() -> None:
    text = (
        "g (float[n, 8] x) => (float[n, 8] y) { s = Sigmoid(x) h = Mul(s, x) t = MatMul(h, table) y = Add(t, scale) }"
    )
    fused = onnxtile.fuse(model(text), ["SiLU", "Linear"], verify=False)
    made = built(fused.model, {"n": "1:5"})
    assert made.proof.equal and made.source.workspace >= 5 * 8 * 4


@needs_cc
def test_a_number_that_is_wrong_at_one_size_is_noticed() -> None:
    planned = onnxtile.plan(model(SEQUENCE), verify=False, dims={"B": "1:3", "n": "1:8"})
    opened, tools = planned.opened(), ProgramTarget().tools()
    assert tools is not None
    source = build(opened, planned.plan, verify=False).source
    runs = list(runs_of(opened, planned.plan, ANYTHING, 3))
    assert compared(source, runs, output_of(source, runs, tools), tools).equal
    wrong = replace(source, code=source.code.replace("= (idx_t)(n);", "= (idx_t)(n > 7u ? 7u : n);"))
    assert wrong.code != source.code
    assert not compared(source, runs, output_of(wrong, runs, tools), tools).equal


MAIN = """
#include "net.h"
#include <stdio.h>
int main(void) {{
    static const int64_t tokens[] = {{{tokens}}};
    for (int turn = 0; turn < 2; ++turn) {{
        net_reset();
        for (int at = 0; at < {count}; ++at) {{
            if (net_run(&tokens[at]) || net_length_past != (uint32_t)at + 1u) return 1;
            for (int i = 0; i < {words}; ++i) printf("%.9g\\n", (double)net_output_scores()[i]);
        }}
    }}
    return net_run(tokens) == 1 && net_length_past == {count}u ? 0 : 2; /* the cache is full */
}}
"""


def require_scores(made: Firmware, count: int, target: ProgramTarget, folder: Path) -> None:
    """Require of the decoder `made`, whose cache has room for `count` tokens, the scores of onnxruntime, again after a reset."""
    tokens = np.random.default_rng(0).integers(0, WORDS, count)
    for name, data in made.files("net").items():
        (folder / f"net{name}").write_bytes(data)
    (folder / "main.c").write_text(MAIN.format(tokens=", ".join(map(str, tokens)), count=count, words=WORDS))
    tools = target.tools()
    assert tools is not None
    subprocess.run([*tools.compiler, "main.c", "net.c", "-lm", "-o", "net"], cwd=folder, check=True)
    text = subprocess.run([*tools.runner, str(folder / "net")], capture_output=True, text=True, check=True).stdout
    got = np.array(list(map(float, text.split()))).reshape(2, count, WORDS)
    assert np.allclose(got, expected(tokens), rtol=1e-4, atol=1e-5)


@needs_cc
def test_a_cache_grows_from_empty_and_again_after_a_reset(tmp_path: Path) -> None:
    made = built(decoder(grows=True), {"past": "0:7"}, state="found")
    assert made.proof.equal and made.proof.runs == 8 and made.source.workspace == 0
    assert made.source.interface.arenas[0][2] < 1.6 * 4 * HEADS * 8 * 8 * 4  # no second cache
    require_scores(made, 8, ProgramTarget(), tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("footprint")
def test_a_cache_grows_on_a_microcontroller(tmp_path: Path) -> None:
    target = emulated(*M7)
    planned = onnxtile.plan(decoder(grows=True), verify=False, dims={"past": "0:15"}, state="found")
    made = build(planned.opened(), planned.plan, target=target)
    assert made.proof.runs == 16 and max(output.max_abs for output in made.proof.outputs) < 1e-5
    assert made.footprint is not None and made.footprint.ram is not None and made.footprint.ram < 20_000
    require_scores(made, 16, target, tmp_path)


CACHE = """g (float[1, 4, s, 8] q, float[1, 2, s, 8] k, float[1, 2, s, 8] v, float[1, 2, past, 8] past_k, float[1, 2, past, 8] past_v) =>
    (float[1, 4, s, 8] y, float[1, 2, t, 8] present_k, float[1, 2, t, 8] present_v) {"""
APPENDED = "present_k = Concat<axis = 2>(past_k, k) present_v = Concat<axis = 2>(past_v, v)"
REPEATED = """{0}4 = Unsqueeze(present_{0}, last) {0}5 = Expand({0}4, groups) {0}6 = Reshape({0}5, joined)"""


@needs_cc
@pytest.mark.parametrize(
    "body",
    [
        "y, present_k, present_v = Attention(q, k, v, , past_k, past_v)",
        f"""{APPENDED} {REPEATED.format("k")} {REPEATED.format("v")}
        turned = Transpose<perm = [0, 1, 3, 2]>(k6) scores = MatMul(q, turned) shares = Softmax(scores) y = MatMul(shares, v6)""",
        f"""{APPENDED} length = Shape<start = 2, end = 3>(past_k) total = Shape<start = 2, end = 3>(present_k)
        both = Add(length, total) share = CastLike(both, q) y = Mul(q, share)""",
    ],
)
def test_operators_on_a_state_that_grows_read_its_rows_where_they_are(body: str) -> None:
    made = built(model(f"{CACHE} {body} }}"), {"past": "0:7", "s": "1:2"}, state="found")
    assert made.proof.equal and made.proof.runs == 8 and made.source.workspace == 0


@needs_cc
def test_what_reads_a_state_that_grows_as_one_piece_is_named() -> None:
    body = f"{APPENDED} y = Tile(q, ones) wide = Pad(present_k, ends)"
    text = f"{CACHE} {body} }}".replace(") {", ", float[1, 2, u, 10] wide) {", 1)
    with pytest.raises(UsageError, match=r"'wide' \(Pad\): it reads or writes a growing state as one piece"):
        built(model(text), {"past": "0:7", "s": "1:2"}, state="found")


@needs_cc
def test_a_size_out_of_its_range_runs_nothing(tmp_path: Path) -> None:
    text = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"
    for name, data in built(model(text), {"n": "2:8"}, io="outside").files("net").items():
        (tmp_path / f"net{name}").write_bytes(data)
    (tmp_path / "main.c").write_text("""
        #include "net.h"
        int main(void) {
            float x[4 * NET_N_MOST] = {1.0f}, y[4 * NET_N_MOST] = {7.0f};
            if (net_run(1, x, y) != 1 || net_run(9, x, y) != 1 || y[0] != 7.0f) return 1;
            return net_run(NET_N_LEAST, x, y) == 0 && y[0] == -1.0f ? 0 : 2;
        }""")
    tools = ProgramTarget().tools()
    assert tools is not None
    subprocess.run([*tools.compiler, "main.c", "net.c", "-lm", "-o", "net"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "net")], check=True)


TURNS = [
    """g (float[4] s, float[n, 4] x) => (float[4] t, float[n, 4] y) {
        t, y = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] c) => (float[4] d, float[4] e) {
            d = Add(a, c) e = Neg(d)
        }> (s, x)
    }""",
    """g (float[b, 3] s, float[b, 3, n] x) => (float[b, 3] t, float[b, n, 3] y) {
        t, y = Scan <num_scan_inputs = 1, scan_input_axes = [2], scan_output_axes = [1], scan_input_directions = [1],
            body = b (float[b, 3] a, float[b, 3] c) => (float[b, 3] d, float[b, 3] e) { p = Add(a, c) d = Tanh(p) e = Neg(p) }> (s, x)
    }""",
    """g (float[n, 4] x) => (float[n, 4] y, float[n, 4] w) <int64 zero = {0}, int64 one = {1}, bool yes = {1}> {
        shape = Shape(x) most = Gather(shape, zero)
        y, w = Loop(most, yes, x) <body = b (int64 i, bool c, float[n, 4] a) => (bool d, float[n, 4] o, float[4] r) {
            d = Identity(c) o = Tanh(a) row = Gather(a, i) j = Add(i, one) k = Add(j, j) f = Cast<to = 1>(k) r = Add(row, f)
        }>
    }""",
    """g (float[n, 4] x, float[n, 4] z) => (float[n, 4] y, float[n, 4] w, float[n, 4] v) <int64 most = {3}> {
        y, w, v = Loop(most, , x, z, x) <body = b (int64 i, bool c, float[n, 4] a, float[n, 4] e, float[n, 4] u) =>
            (bool d, float[n, 4] f, float[n, 4] o, float[n, 4] m) { d = Identity(c) f = Identity(e) o = Identity(a) m = Exp(z) }>
    }""",
    """g (float[k] s, float[n, k] x) => (float[k] y, float[n, k] w) <int64 most = {2}> {
        y, w = Scan <num_scan_inputs = 1, body = b (float[k] a, float[k] r) => (float[k] v, float[k] o) {
            p = Add(a, r)
            v = Loop(most, , p) <body = e (int64 i, bool c, float[k] e) => (bool d, float[k] h) {
                d = Identity(c) z = Add(e, r) h = Tanh(z)
            }>
            o = Neg(p)
        }> (s, x)
    }""",
]


@needs_cc
@pytest.mark.parametrize("io", [pytest.param("inside", marks=pytest.mark.slow), "outside"])
def test_a_loop_or_scan_has_as_many_turns_as_the_sizes_say(io: str) -> None:
    """Rows, also of another axis from the last on; as many turns as rows; values that change places; and turns in turns."""
    made = built(side_by_side(map(model, TURNS)), {"n": "1:9", "b": "1:3", "k": "2:5"}, io=io)
    assert made.proof.equal and made.proof.runs >= 6 and made.source.repeats == 2


def test_a_call_on_other_bytes_at_another_size_is_named() -> None:
    planned = onnxtile.plan(
        model("g (float[n] x) => (float[n] z) { y = Neg(x) z = Exp(y) }"), verify=False, dims={"n": 4}
    )
    program = program_of(planned.opened(), planned.plan)
    first, call = program.calls
    assert isinstance(call, KernelCall)
    moved = {name: address.at(64) for name, address in call.addresses.items()}
    other = replace(program, calls=(first, replace(call, addresses=moved)))
    with pytest.raises(UsageError, match=r"the node that makes 'z' \(Exp\).* other addresses"):
        over_sizes([program, other], SizePoints.from_ranges({"n": (1, 4)}, []), ())


def test_the_command_writes_a_program_over_a_range_or_names_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(HEAD + "g (float[n] x) => (float[n] y) { y = Neg(x) }"), "neg.onnx")
    body = "b (float[2, 4] a, float[2, 4] c) => (float[2, 4] d, float[2, 4] e) { d = Add(a, c) e = Neg(d) }"
    scan = f"""g (float[2, n, 4] x, float[2, 1, 4] k, float[2, 4] s) => (float[2, 4] t, float[m, 2, 4] y, float[2, m, 4] all) {{
        all = Concat<axis = 1>(x, k) t, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], body = {body}>(s, all) }}"""
    onnx.save(onnx.parser.parse_model(HEAD + scan), "scan.onnx")
    for name, code in (("neg", 0), ("scan", 2)):
        options = ["--dim", "n=1:4", "--state", "found", "--emit", f"{name}.c", "--dry-run"]
        monkeypatch.setattr(sys, "argv", ["onnxtile", "plan", f"{name}.onnx", *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert (end.value.code or 0) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "'all'" in line
    assert {file.name for file in tmp_path.iterdir()} == {"neg.onnx", "scan.onnx", "neg.c", "neg.h"}


def test_a_number_is_a_product_of_sizes_or_none() -> None:
    batch, length = SizeFormula.symbol("batch"), SizeFormula.symbol("length")
    points = SizePoints.from_ranges({"batch": (1, 3), "length": (1, 8)}, [batch, length, length // 2])
    assert points.points[0] == {"batch": 3, "length": 8}
    for name in ("batch", "length"):
        assert {point[name] % 2 for point in points.points[1:]} == {0, 1} and min(
            point[name] for point in points.points
        ) > 1

    def values(formula: SizeFormula) -> list[int]:
        return [formula.at(point) for point in points.points]

    for formula in (
        length,
        length * 12 + 3,
        batch * length * 4,
        (length // 2) * batch,
        (length // 2) * 2,
        batch * length * length,
    ):
        assert points.number(values(formula)) == formula
    assert points.number([7] * len(points.points)) == 7
    right = values(batch * length)
    assert points.number([*right[:-1], right[-1] + 1]) is None
