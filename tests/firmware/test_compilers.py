"""Programs in C of different models compile without a warning under gcc and clang, as C99 and as C++."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

import onnxtile
from models.make_transformer import make_transformer

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from tests.firmware.test_decoder import decoder
from tests.firmware.test_in_place import MAX, planned
from tests.firmware.test_program import RECURRENT, STRICT, network
from tests.firmware.test_quantised import quantised
from tests.firmware.test_ranges import SEQUENCE
from tests.firmware.test_ranges import model as over_ranges
from tests.firmware.test_repeats import CASES, HEAD, NESTED

COMPILERS = (
    ("gcc", "-std=c99", "-Wvla", "-Wstrict-prototypes"),
    ("clang", "-std=c99", "-Wvla", "-Wstrict-prototypes"),
    ("g++", "-x", "c++"),
    ("clang++", "-x", "c++", "-std=c++17"),
)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


WEIGHTS, AGAIN = ", ".join(["0.25"] * 96), ", ".join(["0.5"] * 144)
LSTM = f"""{HEAD} g (float[5, 1, 4] x, float[1, 1, 6] h) => (float[5, 1, 1, 6] y, float[1, 1, 6] next)
<float[1, 24, 4] w = {{{WEIGHTS}}}, float[1, 24, 6] r = {{{AGAIN}}}> {{
    y, next = LSTM <hidden_size = 6> (x, w, r, , , h)
}}"""
WIDE = f"""{HEAD} g (int64[4] n, double[4] d) => (int64[4] m, double[4] e) {{ m = Abs(n) e = Exp(d) }}"""
QUICK = {"sizes in ranges", "weights in a file", "integers", "a state", "turns in turns"}


def fitted(folder: Path) -> None:
    onnx.save(network(32), folder / "model.onnx")
    made = onnxtile.fit(folder / "model.onnx", capacity="40KiB", budget="50%", verify=False)
    made.plan(verify=False).write(folder / "net.c")


PROGRAMS: dict[str, Callable[[Path], object]] = {
    "convolutions": lambda folder: onnxtile.plan(network(), verify=False).write(folder / "net.c"),
    "weights in a file": lambda folder: onnxtile.plan(network(), verify=False).write(
        folder / "net.c", target={"weights": "file"}
    ),
    "inputs inside": lambda folder: onnxtile.plan(network(), verify=False, io="inside").write(folder / "net.c"),
    "two memories": lambda folder: onnxtile.plan(network(), verify=False, capacity={"net": 8192, "dram": 65536}).write(
        folder / "net.c"
    ),
    "meta-ops": lambda folder: (
        onnxtile.fuse(make_transformer(blocks=1), verify=False).plan(verify=False).write(folder / "net.c")
    ),
    "integers": lambda folder: onnxtile.plan(quantised("qdq"), verify=False).write(folder / "net.c"),
    "strips": fitted,
    "a state": lambda folder: onnxtile.plan(parsed(RECURRENT), verify=False, state={"h": "next"}).write(
        folder / "net.c"
    ),
    "a decoder": lambda folder: onnxtile.plan(decoder(), verify=False, state="found").write(folder / "net.c"),
    "turns in turns": lambda folder: onnxtile.plan(parsed(HEAD + CASES[NESTED]), verify=False).write(folder / "net.c"),
    "an LSTM": lambda folder: onnxtile.plan(parsed(LSTM), verify=False).write(folder / "net.c"),
    "copies of operands": lambda folder: planned(MAX).write(folder / "net.c"),
    "sizes in ranges": lambda folder: onnxtile.plan(
        over_ranges(SEQUENCE), verify=False, dims={"B": "1:3", "n": "1:8"}
    ).write(folder / "net.c"),
    "wide numbers": lambda folder: onnxtile.plan(parsed(WIDE), verify=False).write(folder / "net.c"),
}


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in PROGRAMS]
)
def test_a_program_compiles_without_a_warning_everywhere(program: str, tmp_path: Path) -> None:
    there = [command for command in COMPILERS if shutil.which(command[0]) is not None]
    if not there:
        pytest.skip("there is no compiler")
    PROGRAMS[program](tmp_path)
    if program == "sizes in ranges":
        run = "int net_run(uint32_t b, uint32_t n, const float *x, const int64_t *tokens, const bool *keep);"
        assert run in (tmp_path / "net.h").read_text()
    macros = {line.split()[1] for line in (tmp_path / "net.h").read_text().splitlines() if line.endswith("_EXTERN")}
    assert macros
    for command in there:
        for defined in ([], [f"-D{macro}" for macro in macros]):
            options = [*command, *defined, "-pedantic", *(word for word in STRICT if word not in COMPILERS[0])]
            done = subprocess.run(options, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert not done.stderr and not done.returncode, f"{options}: {done.stderr}"
