"""The command line: what each command prints and writes, and that bad input is one line and exit code 2."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer.main
from onnx import numpy_helper

from onnxtile import cli
from onnxtile.cli import application
from onnxtile.cli.application import build
from onnxtile.cli.command import plain_texts, verbs
from onnxtile.declare.verb import parameters
from tests.cli.conftest import Done, Run, files

GRAPH = """g (float[N,64] x) => (float[N,8] y) <float c = {3.0}> {
    [product] h = MatMul(x, w)  [sum] i = Add(h, b)  [scaled] j = Mul(i, c)  [end] y = Relu(j) }"""


def model(graph: str = GRAPH, scale: float = 1.0) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {graph}')
    random = np.random.default_rng(0)
    for name, shape in (("w", (64, 8)), ("b", (8,))):
        if f" {name})" in graph:
            weight = random.standard_normal(shape).astype(np.float32) * np.float32(scale)
            made.graph.initializer.append(numpy_helper.from_array(weight, name))
    return made


@pytest.fixture(name="folder", autouse=True)
def _folder(tmp_path: Path) -> Path:
    """A folder with a model, the same with other weights, and the same with its weights in a file."""
    onnx.save(model(), tmp_path / "m.onnx")
    onnx.save(model(scale=1.01), tmp_path / "other.onnx")
    return tmp_path


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


COMMANDS = list(_commands(typer.main.get_command(build())))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(run: Run, command: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        done = run(*command, flag)
        assert done.code == 0
        assert done.out.startswith("Usage: onnxtile")
        assert done.err == ""


def test_the_commands_are_there() -> None:
    names = {command[0] for command in COMMANDS if command}
    assert {"match", "fuse", "unfuse", "tile", "plan", "verify", "demo"} <= names


def test_version(run: Run) -> None:
    from importlib.metadata import version

    assert run("--version").out == f"{version('onnxtile')}\n"


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    done = run()
    assert "Usage: onnxtile" in done.out + done.err


def test_match(run: Run, folder: Path) -> None:
    before = files(folder)
    done = run("match", "m.onnx", "MatMul-*>Add")
    assert done.code == 0
    assert "product" in done.out and "sum" in done.out
    assert done.err == ""
    content = run("match", "m.onnx", "MatMul#1-*>Add", "--json", "-").json
    assert content == {
        "query": "MatMul#1-*>Add",
        "matches": [{"root": "product", "module": "", "nodes": ["product", "sum"], "anchors": {"MatMul#1": "product"}}],
    }
    assert files(folder) == before


def test_match_nowhere_is_exit_1(run: Run) -> None:
    done = run("match", "m.onnx", "Conv->Relu")
    assert (done.code, done.out.strip(), done.err) == (1, "no match", "")
    assert run("match", "m.onnx", "Conv->Relu", "-q").data == b""
    assert run("match", "m.onnx", "Conv->Relu", "--json", "-").json["matches"] == []


def test_fuse(run: Run, folder: Path) -> None:
    done = run("fuse", "m.onnx", "-p", "MatMul-*>Add", "--pattern", "Mul->Relu")
    assert (done.code, done.err) == (0, "")
    assert "4 nodes became 2" in done.out
    assert "verified: 2 runs at N=2" in done.out
    assert "written: m.fused.onnx" in done.out
    fused = onnx.load(folder / "m.fused.onnx")
    assert [node.domain for node in fused.graph.node] == ["onnxtile"] * 2


def test_fuse_with_a_set_a_pattern_and_a_file(run: Run, folder: Path) -> None:
    (folder / "mine.toml").write_text('name = "Mine"\ndoc = "x"\n[[variants]]\nquery = "Mul->Relu"\n')
    content = run("fuse", "m.onnx", "-p", "aidge", "-p", "mine.toml", "--json", "-", "--dry-run").json
    fused = {pattern["name"]: pattern["fused"] for pattern in content["patterns"]}
    assert fused["Linear"] == fused["Mine"] == 1


@pytest.mark.parametrize(
    ("patterns", "code"),
    [((), 0), (("Conv->Relu",), 1), (("Conv->Relu", "Gemm->Conv"), 1), (("Conv->Relu", "MatMul-*>Add"), 0)],
)
def test_fuse_ends_with_1_where_no_pattern_that_was_named_matches(
    run: Run, folder: Path, patterns: tuple[str, ...], code: int
) -> None:
    done = run("fuse", "m.onnx", *(part for pattern in patterns for part in ("-p", pattern)))
    assert done.code == code
    assert ("no pattern that was named matches" in done.err) == (code == 1)
    assert (folder / "m.fused.onnx").exists() == (code == 0)
    assert ("verified" in done.out) == (code == 0), "of a model that is not written nothing is said"
    listed = ", ".join(f"'{pattern}'" for pattern in patterns)
    (folder / "p.toml").write_text("[[steps]]\ndo = 'fuse'\n" + (f"patterns = [{listed}]\n" if patterns else ""))
    assert run("run", "p.toml", "m.onnx", "--dry-run").code == code


def test_fuse_json_has_what_scripts_rely_on(run: Run, folder: Path) -> None:
    content = run("fuse", "m.onnx", "-p", "MatMul-*>Add", "--json", "-").json
    assert (content["nodes_before"], content["nodes_after"]) == (4, 3)
    assert content["verdict"]["equal"] is True
    assert {"name", "matches", "fused"} <= content["patterns"][0].keys()
    assert run("fuse", "m.onnx", "-p", "MatMul-*>Add", "--json", "r.json", "--no-verify").code == 0
    assert json.loads((folder / "r.json").read_text())["verdict"] is None


def test_unfuse(run: Run, folder: Path) -> None:
    assert run("fuse", "m.onnx", "-p", "MatMul-*>Add").code == 0
    done = run("unfuse", "m.fused.onnx")
    assert done.code == 0
    assert "written: m.fused.unfused.onnx" in done.out
    restored = onnx.load(folder / "m.fused.unfused.onnx")
    assert [node.name for node in restored.graph.node] == ["product", "sum", "scaled", "end"]
    assert run("unfuse", "m.fused.onnx", "--json", "-", "--dry-run").json["unfused"] == {"MetaOp": 1}


def test_tile(run: Run, folder: Path) -> None:
    done = run("tile", "m.onnx", "--max", "32", "--dim", "N=4")
    assert (done.code, done.err) == (0, "")
    assert "written: m.tiled.onnx" in done.out
    assert sum(node.op_type == "MatMul" for node in onnx.load(folder / "m.tiled.onnx").graph.node) == 2
    content = run("tile", "m.onnx", "--max", "_x16x_", "--shape", "x=3x64", "--json", "-", "--dry-run").json
    (tiled,) = content["tiled"]
    assert (tiled["node"], tiled["op"], tiled["m"], tiled["k"], tiled["n"], tiled["matmuls"]) == (
        "product",
        "MatMul",
        3,
        64,
        8,
        4,
    )
    assert {"skipped", "verdict"} <= content.keys()


def test_tile_judges_each_product_as_often_as_asked(run: Run) -> None:
    arguments = ("tile", "m.onnx", "--max", "32", "--dim", "N=4", "--runs", "40", "--dry-run")
    assert "and 1 different site by itself, 40 runs each" in run(*arguments).out
    (site,) = run(*arguments, "--json", "-").json["sites"]
    assert (site["runs"], site["passed"]) == (40, True)


def test_plan(run: Run, folder: Path) -> None:
    done = run("plan", "m.onnx", "--dim", "N=4", "--emit", "plan.json", "--emit", "plan.csv")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "written: m.planned.onnx, plan.json, plan.csv"
    assert {"m.planned.onnx", "plan.json", "plan.csv"} <= files(folder).keys()
    content = json.loads((folder / "plan.json").read_text())
    assert content["unplanned"] == []
    assert (folder / "plan.csv").read_text().startswith("id,lower,upper,size,offset\n")
    shown = run("plan", "m.onnx", "--dim", "N=4", "--json", "-", "--dry-run").json
    assert shown["arenas"] == content["arenas"]


def test_plan_is_drawn_beside_another_plan(run: Run, folder: Path) -> None:
    plan = ("plan", "m.onnx", "--dim", "N=4", "--no-verify")
    assert run(*plan, "--emit", "before.json", "--emit", "net.h").code == 0
    assert "#define NET_T_y_OFFSET" in (folder / "net.h").read_text()
    assert run(*plan, "--emit", "plan.html", "--compare", "before.json").code == 0
    page = (folder / "plan.html").read_text()
    assert '"said":"before"' in page


def test_plan_over_capacity_is_exit_1(run: Run, folder: Path) -> None:
    before = files(folder)
    done = run("plan", "m.onnx", "--dim", "N=4", "--capacity", "64", "--emit", "plan.json")
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert files(folder) == before
    assert run("plan", "m.onnx", "--dim", "N=4", "--capacity", "1MiB").code == 0


def test_verify(run: Run) -> None:
    assert run("verify", "m.onnx", "m.onnx").code == 0
    content = run("verify", "m.onnx", "m.onnx", "--dim", "N=3", "--json", "-").json
    assert content["equal"] is True
    assert {"name", "max_abs", "max_rel", "tolerance"} <= content["outputs"][0].keys()


def _drawing(file: Path, nodes: str, *, outputs: int) -> None:
    results = ", ".join(f"float[4] {name}" for name in "yz"[:outputs])
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => ({results}) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), file)


def test_verify_names_the_outputs_that_it_does_not_compare(run: Run, folder: Path) -> None:
    _drawing(folder / "normal.onnx", "y = RandomNormalLike(x) z = Neg(x)", outputs=2)
    _drawing(folder / "uniform.onnx", "y = RandomUniformLike(x) z = Neg(x)", outputs=2)
    done = run("verify", "normal.onnx", "uniform.onnx")
    assert done.code == 0
    assert "not compared: y: it follows from 'y', which draws random numbers" in " ".join(done.out.split())
    content = run("verify", "normal.onnx", "uniform.onnx", "--json", "-").json
    assert [one["name"] for one in content["outputs"]] == ["z"]
    assert content["not_compared"].keys() == {"y"}


def test_verify_of_nothing_that_can_be_compared_is_exit_1(run: Run, folder: Path) -> None:
    _drawing(folder / "normal.onnx", "y = RandomNormalLike(x)", outputs=1)
    _drawing(folder / "uniform.onnx", "y = RandomUniformLike(x)", outputs=1)
    done = run("verify", "normal.onnx", "uniform.onnx")
    assert done.code == 1
    assert "not compared: y: it follows from 'y', which draws random numbers" in " ".join(done.out.split())
    assert not run("verify", "normal.onnx", "uniform.onnx", "--json", "-").json["equal"]


def test_verify_of_different_models_is_exit_1(run: Run, folder: Path) -> None:
    done = run("verify", "m.onnx", "other.onnx")
    assert done.code == 1
    assert "NO" in done.out
    onnx.save(model(GRAPH.replace(" y)", " z)").replace("y =", "z =")), folder / "renamed.onnx")
    content = run("verify", "m.onnx", "renamed.onnx", "--json", "-")
    assert content.code == 1
    assert [output["max_abs"] for output in content.json["outputs"]] == [None, None]
    assert run("verify", "m.onnx", "renamed.onnx").code == 1


COMMAND_LINES = {
    "fuse": ("fuse", "m.onnx", "-p", "MatMul-*>Add"),
    "unfuse": ("unfuse", "f.onnx"),
    "tile": ("tile", "m.onnx", "--max", "32", "--dim", "N=4"),
    "plan": ("plan", "m.onnx", "--dim", "N=4"),
}


@pytest.fixture(name="line", params=COMMAND_LINES)
def _line(request: pytest.FixtureRequest, run: Run) -> tuple[str, ...]:
    """The command line of each command that writes a model."""
    if request.param == "unfuse":
        assert run("fuse", "m.onnx", "-p", "MatMul-*>Add", "-o", "f.onnx").code == 0
    return COMMAND_LINES[request.param]


def test_the_model_can_go_to_stdout(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    before = files(folder)
    done = run(*line, "-o", "-")
    assert done.code == 0
    onnx.checker.check_model(onnx.ModelProto.FromString(done.data))
    assert files(folder) == before
    assert run(*line, "-o", "out.onnx").code == 0
    assert (folder / "out.onnx").read_bytes() == done.data


def test_dry_run_writes_nothing(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    before = files(folder)
    done = run(*line, "--dry-run")
    assert done.code == 0
    assert done.data
    assert b"written" not in done.data
    assert files(folder) == before


def test_a_dry_run_writes_what_emit_asks_for_and_no_model(run: Run, folder: Path) -> None:
    before = files(folder).keys()
    done = run("plan", "m.onnx", "--dim", "N=4", "--dry-run", "--emit", "plan.json", "--json", "r.json")
    assert done.code == 0 and done.out.endswith("\nwritten: plan.json\n")
    assert files(folder).keys() - before == {"plan.json", "r.json"}
    done = run("plan", "m.onnx", "--dim", "N=4", "--dry-run", "--capacity", "64", "--emit", "small.json")
    assert done.code == 1 and not (folder / "small.json").exists()


def test_quiet_prints_nothing(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    done = run(*line, "-q", "-o", "out.onnx")
    assert (done.code, done.data, done.err) == (0, b"", "")
    assert (folder / "out.onnx").exists()


def test_verification_can_be_turned_off(run: Run, line: tuple[str, ...]) -> None:
    content = run(*line, "--no-verify", "--json", "-", "--dry-run").json
    assert content["verdict"] is None


def test_the_input_is_overwritten_only_with_force(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    before = files(folder)
    for target in (line[1], f"./{line[1]}", str(folder / line[1])):
        done = run(*line, "-o", target)
        assert done.code == 2
        assert done.err.startswith("error: ") and "--force" in done.err
        assert files(folder) == before
    assert run(*line, "-o", line[1], "--force").code == 0
    assert files(folder).keys() == before.keys()
    assert (folder / line[1]).read_bytes() != before[line[1]]


def test_another_file_is_overwritten(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    (folder / "out.onnx").write_text("old")
    assert run(*line, "-o", "out.onnx").code == 0
    onnx.load(folder / "out.onnx")


def test_the_same_input_gives_the_same_bytes(run: Run, folder: Path, line: tuple[str, ...]) -> None:
    assert run(*line, "-o", "a.onnx").code == run(*line, "-o", "b.onnx").code == 0
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()


# Bad input


def require_refused(done: Done, *words: str) -> None:
    """Assert that the command ended as bad input should: exit code 2, one line, at most a query and its caret below."""
    assert done.code == 2, done
    assert done.data == b""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    assert "internal error" not in done.err
    first, *rest = done.err.splitlines()
    assert first != "error: "
    assert not rest or (len(rest) == 2 and re.match(r"line \d+: ", rest[0]) and set(rest[1]) <= {" ", "^"})
    for word in words:
        assert word in done.err


READERS = [
    ("match", "bad.onnx", "MatMul->Add"),
    ("plan", "bad.onnx"),
    ("verify", "m.onnx", "bad.onnx"),
]


def _text_file(path: Path) -> None:
    path.write_text("this is not a model\n" * 100)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10)


def _truncated(path: Path) -> None:
    data = model().SerializeToString()
    path.write_bytes(data[: len(data) * 2 // 3])


def _without_data(path: Path) -> None:
    onnx.save(model(), path, save_as_external_data=True, location="bad.bin", size_threshold=0)
    (path.parent / "bad.bin").unlink()


def _short_data(path: Path) -> None:
    onnx.save(model(), path, save_as_external_data=True, location="bad.bin", size_threshold=0)
    data = (path.parent / "bad.bin").read_bytes()
    (path.parent / "bad.bin").write_bytes(data[: len(data) // 2])


def _unknown_operator(path: Path) -> None:
    bad = model()
    bad.graph.node[0].op_type = "MatMull"
    onnx.save(bad, path)


def _folder_of_that_name(path: Path) -> None:
    path.mkdir()


def _absent(_path: Path) -> None:
    return


@pytest.mark.parametrize("arguments", READERS, ids=lambda a: " ".join(a[:2]))
@pytest.mark.parametrize(
    "make",
    [_text_file, _empty, _picture, _truncated, _without_data, _short_data, _unknown_operator, _folder_of_that_name, _absent],
)  # fmt: skip
def test_bad_models(run: Run, folder: Path, make: Callable[[Path], None], arguments: tuple[str, ...]) -> None:
    make(folder / "bad.onnx")
    before = files(folder)
    require_refused(run(*arguments), "bad.onnx")
    assert files(folder) == before


@pytest.mark.parametrize("query", ["MatMul->Ad", "", "MatMul[axis ==]", "MatMul->Ädd"])
def test_bad_queries(run: Run, folder: Path, query: str) -> None:
    before = files(folder)
    for arguments in (("match", "m.onnx", query), ("fuse", "m.onnx", "-p", query or " ")):
        require_refused(run(*arguments))
    assert files(folder) == before


def test_a_typo_in_a_query_gets_its_caret_and_a_suggestion(run: Run) -> None:
    done = run("match", "m.onnx", "MatMul->Ad")
    require_refused(done, "'Ad'", "did you mean")
    assert done.err.splitlines()[1:] == ["line 1: MatMul->Ad", "                ^^"]


def test_a_bad_query_in_a_pattern_file_names_the_file(run: Run, folder: Path) -> None:
    (folder / "mine.toml").write_text('name = "Mine"\ndoc = "x"\n[[variants]]\nquery = "Mul->"\n')
    done = run("fuse", "m.onnx", "-p", "mine.toml")
    require_refused(done, "mine.toml:4: variant 1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fuse", "m.onnx", "-p", "Linear->Reluu"), ("'Reluu'", "Relu")),
        (("fuse", "m.onnx", "-p", "Linnear"), ("Linnear", "Linear")),
        (("tile", "m.onnx", "--max", "-3"), ("-3",)),
        (("tile", "m.onnx", "--max", "many"), ("--max 'many'", "not a bound of a tile")),
        (("tile", "m.onnx", "--max", "0x_x_"), ("0",)),
        (("tile", "m.onnx", "--max", "8", "--runs", "0"), ("invalid --runs 0", "from 1 to 1,000,000")),
        (("tile", "m.onnx"), ("--max",)),
        (("tile", "m.onnx", "--max", "64", "--dim", "M=3"), ("'M'", "N")),
        (("tile", "m.onnx", "--max", "64", "--dim", "N"), ("NAME=N",)),
        (("tile", "m.onnx", "--max", "64", "--dim", "N=0"), ("N",)),
        (("tile", "m.onnx", "--max", "64", "--dim", "N=x"), ("'N' depends on 'x'", "--dim x=N")),
        (("plan", "m.onnx", "--dim", "batch=3"), ("'batch'", "N")),
        (("plan", "m.onnx", "--shape", "z=1x64"), ("'z'", "x")),
        (("plan", "m.onnx", "--shape", "x=1x64x3"), ("'x'",)),
        (("plan", "m.onnx", "--shape", "x=1,64"), ("1,64",)),
        (("plan", "m.onnx", "--dim", "N=2", "--alignment", "0"), ("0",)),
        (("plan", "m.onnx", "--dim", "N=2", "--alignment", "3"), ("3",)),
        (("plan", "m.onnx", "--dim", "N=2", "--search", "wizard"), ("wizard", "no planner")),
        (("plan", "m.onnx", "--dim", "N=2", "--capacity", "lots"), ("lots", "KiB")),
        (("plan", "m.onnx", "--dim", "N=2", "--emit", "plan.xyz"), ("plan.xyz", ".json")),
        (("plan", "m.onnx", "--dim", "N=2", "--emit", "nowhere/plan.json"), ("nowhere",)),
        (("plan", "m.onnx", "--dim", "N=2", "--emit", "p.svg", "--compare", "no.json"), ("no.json", "no such file")),
        (("verify", "m.onnx", "m.onnx", "--dim", "M=2"), ("'M'",)),
        (("verify", "m.onnx"), ("OTHER",)),
        (("fuse",), ("IN",)),
        (("match", "m.onnx"), ("QUERY",)),
        (("melt", "m.onnx"), ("melt",)),
        (("fuse", "m.onnx", "--quick"), ("--quick",)),
        (("fuse", "m.onnx", "-o", "."), ("folder",)),
        (("tile", "m.onnx", "--max", "64", "-o", "nowhere/out.onnx"), ("nowhere",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_usage(run: Run, folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    before = files(folder)
    require_refused(run(*arguments), *words)
    assert files(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_must_not_be_written(run: Run, folder: Path) -> None:
    (closed := folder / "closed").mkdir()
    closed.chmod(0o500)
    try:
        require_refused(run("fuse", "m.onnx", "-p", "MatMul-*>Add", "-o", "closed/out.onnx"), "closed")
        assert list(closed.iterdir()) == []
    finally:
        closed.chmod(0o700)


def test_no_space_is_left(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full while the temporary file is written."""

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    before = files(folder)
    require_refused(run("fuse", "m.onnx", "-p", "MatMul-*>Add"), "No space left on device")
    assert files(folder) == before


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.system.errors import ModelError

    for words in (["--debug", "fuse", "absent.onnx"], ["fuse", "absent.onnx", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["onnxtile", *words])
        with pytest.raises(ModelError):
            cli.main()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("fuse", "m.onnx", "--shape", "x=1"),
            "there is no option --shape (onnxtile fuse --help all shows what there is)",
        ),
        (("fuse", "m.onnx", "--patern", "GeLU"), "there is no option --patern (did you mean --pattern?)"),
        (("plan", "m.onnx", "--dims", "N=1"), "there is no option --dims (did you mean --dim?)"),
        (("pattern", "new", "--fro", "m.onnx"), "there is no option --fro (did you mean --from?)"),
        (("--verson",), "there is no option --verson (did you mean --version?)"),
    ],
)
def test_an_unknown_option_is_answered_by_one_that_is_near(run: Run, arguments: tuple[str, ...], line: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out, done.err) == (2, "", f"error: {line}\n")


def test_a_real_process_ends_the_same(folder: Path) -> None:
    command = [sys.executable, "-m", "onnxtile"]
    done = subprocess.run([*command, "fuse", "absent.onnx"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: absent.onnx: no such file\n")
    done = subprocess.run(
        [*command, "match", "m.onnx", "Conv"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "no match\n", "")


def test_run_takes_models_through_a_pipeline(run: Run, folder: Path) -> None:
    (folder / "p.toml").write_text('[[steps]]\ndo = "fuse"\npatterns = ["MatMul-*>Add"]\n[[steps]]\ndo = "verify"\n')
    done = run("run", "p.toml", "m.onnx")
    assert (done.code, done.err) == (0, "")
    assert "1 passed, 0 failed" in done.out
    assert {"m.p.onnx", "m.p.report.json"} <= {path.name for path in folder.iterdir()}
    (folder / "broken.onnx").write_bytes(b"no model")
    content = run("run", "p.toml", "m.onnx", "broken.onnx", "--json", "-").json
    assert (content["passed"], content["failed"]) == (1, 1)
    assert "broken.onnx" in content["models"][1]["error"]
    failed = run("run", "p.toml", "m.onnx", "broken.onnx", "-q")
    assert (failed.code, failed.out) == (1, "")
    missing = run("run", "p.toml", "m.onnx", "nowhere.onnx")
    assert (missing.code, missing.out) == (2, "") and "nowhere.onnx" in missing.err


@pytest.mark.parametrize(
    "line",
    [
        "inspect m.onnx --top 3 --by=macs --tree --debug",
        "inspect --dim batch=1 --dim seq=2 m.onnx --json - -q",
        "plan m.onnx --no-verify -o out.onnx --capacity sram=1KiB --emit a.json --emit b.csv",
        "match m.onnx Conv->Relu --json=-",
        "verify a.onnx b.onnx",
        "fuse m.onnx -p LayerNorm -p GeLU",
    ],
)
def test_plain_words_are_read_as_typer_reads_them(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verb, *words = line.split()
    seen: list[dict[str, Any]] = []

    def run_verb(_verb: object, texts: dict[str, Any]) -> int:
        seen.append(texts)
        return 0

    monkeypatch.setattr("onnxtile.cli.application.run_verb", run_verb)
    monkeypatch.setattr(sys, "argv", ["onnxtile", verb, *words])
    assert application.run() == 0
    given = {
        name: list(text) if isinstance(text, tuple) else text
        for name, text in seen[0].items()
        if text is not None and text not in ([], ())
    }
    assert plain_texts(words, parameters(verbs()[verb].command)) == given


@pytest.mark.parametrize(
    "words",
    [["m.onnx", "--help"], ["m.onnx", "--bogus"], ["m.onnx", "--top"], ["m.onnx", "--top", "-1"], ["a", "b"], []],
)
def test_what_may_be_a_mistake_is_left_to_typer(words: list[str]) -> None:
    assert plain_texts(words, parameters(verbs()["inspect"].command)) is None


def test_a_plain_command_does_not_load_typer() -> None:
    script = "import sys; sys.argv = ['onnxtile', 'inspect', 'missing.onnx']; from onnxtile.__main__ import main\n"
    script += "try:\n    main()\nexcept SystemExit:\n    print('typer' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
