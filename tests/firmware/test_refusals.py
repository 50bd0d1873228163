"""What no program in C can be written of ends with 2 and one line, and nothing is written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from onnxtile import cli

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware import write
from onnxtile.system.errors import UsageError
from tests.firmware.test_program import built

MODELS = {
    "g (float[4] x) => (float[4] y) { q = SequenceConstruct(x) i = Constant <value_int = 0> () y = SequenceAt(q, i) }": (
        "'q': a sequence has no fixed bytes"
    ),
    "g (string[2] s, float[2] x) => (string[2] t, float[2] y) { t = Identity(s) y = Neg(x) }": (
        "'s': strings have no fixed bytes"
    ),
    "g (float[4] x) => (float[4] y) { e = SequenceEmpty() q = SequenceInsert(e, x) i = Constant <value_int = 0> () y = "
    "SequenceAt(q, i) }": "'e': a sequence has no fixed bytes",
    "g (float[4] x) => (float[4] y) { o = Optional(x) y = OptionalGetElement(o) }": "'o': an optional has no fixed bytes",
    "g (float[3, n] x) => (float[3, n] y) { y = Neg(x) }": r"sizes of inputs are not known: 'x' \[3, n\]",
    "g (float[6] x) => (float[1, m] y) { z = NonZero(x) y = Cast <to = 1> (z) }": (
        r"does not have that of 'z': its shape depends on the data"
    ),
    "g (bfloat16[4] x) => (bfloat16[4] y) { y = Neg(x) }": "elements of BFLOAT16",
    "g (float[4] x) => (float[4] y) { y = RandomNormalLike(x) }": r"'y' \(RandomNormalLike\) draws random numbers",
    "g (float[1, 4] x) => (float[1, 3, 2] y) { y = com.microsoft.Rfft <signal_ndim = 1, normalized = 0, onesided = 1> (x) }": (
        r"the node 'y' \(Rfft\): emx-onnx-cgen has no Rfft"
    ),
    "g (float[1, 8] x) => (float[1, 2, 3, 2] y) <int64 s = {4}, int64 l = {4}> { y = STFT <onesided = 1> (x, s, , l) }": (
        r"the node 'y' \(STFT\): STFT signal rank must be 3, got 2 \(nothing was written\)$"
    ),
}
OPTIONS = {
    ("--emit", "nowhere/net.c"): "the folder nowhere does not exist",
    ("--emit", "model.onnx/net.c"): "Not a directory",
    ("--emit", "taken.c"): "taken.h is a folder",
    ("--emit", "net.c", "--emit", "net.weights.bin"): "named as a file of its own too",
}


def refused(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line with which `command` ends."""
    monkeypatch.setattr(sys, "argv", ["onnxtile", "plan", "model.onnx", *command])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def files_of(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.mark.parametrize("text", MODELS)
def test_a_model_without_c_names_the_node_or_tensor(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]> '
    onnx.save(onnx.parser.parse_model(head + text), "model.onnx")
    line = refused(["--emit", "net.c"], monkeypatch, capsys)
    assert line.startswith("error: ") and re.search(MODELS[text], line), line
    assert files_of(tmp_path) == {"model.onnx"}


@pytest.mark.parametrize("options", OPTIONS)
def test_files_and_options_are_refused_before_the_model_is_read(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_text("no model")
    Path("taken.h").mkdir()
    line = refused([*options], monkeypatch, capsys)
    assert line.startswith("error: ") and re.search(OPTIONS[options], line), line
    assert files_of(tmp_path) == {"model.onnx", "taken.h"}


def test_too_many_weights_for_a_text_are_told_to_go_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(write, "_MOST_IN_CODE", 15)
    text = "g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }"
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 18]> ' + text), "model.onnx")
    line = refused(["--emit", "net.c"], monkeypatch, capsys)
    assert "16 bytes of weights" in line and 'weights = "file"' in line
    assert files_of(tmp_path) == {"model.onnx"}


@pytest.mark.parametrize("more", ["clip = 1.0", "input_forget = 1"])
def test_unusual_states_of_an_lstm_on_the_way_back_have_no_kernel(more: str) -> None:
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    back (float[5,1,3] x, float[1,16,3] w, float[1,16,4] r) => (float[5,1,1,4] y)
    {{ y = LSTM<hidden_size = 4, direction = "reverse", {more}>(x, w, r) }}
    """
    with pytest.raises(UsageError, match="an LSTM that runs backwards has other functions or lengths"):
        built(onnx.parser.parse_model(text))
