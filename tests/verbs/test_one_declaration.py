"""An option is one edit and a use, a verb one file: shown in a copy of the package, where a dummy of each is added."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OPTION = """    dummy: Annotated[str, Option("colour of the plan", "red|blue", choices=Choices(also=("red", "blue")))] = "red"
    order: Annotated["""
USE = """    print(f"the plan is {options.dummy}")
    planned, draft = _plan(options)
"""
VERB = '''"""count: count the nodes of a model."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

from onnxtile.common_options import ModelArgument, ReportOptions, WatchOptions
from onnxtile.declare.verb import Option, declared
from onnxtile.declare.verb import Outcome, Verb


@dataclass(frozen=True)
class CountOptions(WatchOptions):
    """The options of `count`."""

    model: ModelArgument
    _: KW_ONLY
    times: Annotated[int, Option("factor of the count", "N")] = 1


@dataclass(frozen=True)
class CountCommand(ReportOptions, CountOptions):
    """Count the nodes of a model.

    Examples:
        onnxtile count model.onnx --times 2
    """


@dataclass(frozen=True)
class NodeCount:
    """How many nodes a model has."""

    nodes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `count`."""
        return {"nodes": self.nodes}


@declared(CountOptions)
def count(options: CountOptions) -> NodeCount:
    """Return how many nodes `model` has."""
    from onnxtile.model.load import load

    return NodeCount(options.times * load(options.model).graph.num_nodes())


def _run(options: CountOptions) -> Outcome:
    result = count.from_options(options)
    return Outcome(result, "", text=f"{result.nodes} nodes\\n")


COUNT = Verb("count", CountCommand, _run, CountOptions)
'''
PIPELINE = """[[steps]]
do = "count"
times = 3
[[steps]]
do = "plan"
dummy = "blue"
verify = false
"""


def edit(file: Path, old: str, new: str) -> None:
    before = file.read_text()
    assert old in before
    file.write_text(before.replace(old, new))


@pytest.fixture(name="copy", scope="module")
def _copy(shallow: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has one more option and one more verb, and a model."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "onnxtile", folder / "onnxtile")  # with the bytecode: to compile all takes a second
    for name in ("patterns", "limits", "models"):
        (folder / name).symlink_to(ROOT / name)
    verbs = folder / "onnxtile" / "verbs"
    edit(verbs / "plan.py", "    order: Annotated[", OPTION)
    edit(verbs / "flows" / "plan.py", "    planned, draft = _plan(options)\n", USE)
    (verbs / "count.py").write_text(VERB)
    (folder / "p.toml").write_text(PIPELINE)
    shutil.copyfile(shallow, folder / "m.onnx")
    return folder


def run(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "80", **variables}
    command = [sys.executable, "-m", "onnxtile", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def completed(folder: Path, line: str) -> list[str]:
    words = len(line.split(" ")) - 1
    done = run(folder, _ONNXTILE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(words))
    return done.stdout.split()


def test_help_and_completion_know_both(copy: Path) -> None:
    assert re.search(
        r"^  --dummy red\|blue +colour of the plan \[red\]$", run(copy, "plan", "--help", "all").stdout, re.MULTILINE
    )
    assert re.search(r"^  count +Count the nodes of a model\.$", run(copy, "--help").stdout, re.MULTILINE)
    assert "--times N  factor of the count [1]" in run(copy, "count", "--help").stdout
    assert completed(copy, "onnxtile plan m.onnx --dummy b") == ["blue"]
    assert completed(copy, "onnxtile co") == ["count"]


def test_the_command_line_takes_both(copy: Path) -> None:
    done = run(copy, "plan", "m.onnx", "--dummy", "blue", "--no-verify", "--dry-run", "-q")
    assert (done.returncode, done.stdout) == (0, "the plan is blue\n")
    done = run(copy, "plan", "m.onnx", "--dummy", "green")
    assert (done.returncode, done.stderr) == (2, "error: invalid --dummy 'green' (choose red, blue)\n")
    done = run(copy, "plan", "p.csv", "--dummy", "blue")
    assert done.returncode == 2
    nodes = json.loads(run(copy, "count", "m.onnx", "--json", "-").stdout)["nodes"]
    assert run(copy, "count", "m.onnx", "--times", "2").stdout == f"{2 * nodes} nodes\n"


def test_a_pipeline_takes_both(copy: Path) -> None:
    done = run(copy, "run", "p.toml", "m.onnx", "--json", "summary.json")
    assert done.returncode == 0, done.stderr
    assert "the plan is blue" in done.stdout
    count, _plan = json.loads((copy / "m.p.report.json").read_text())["steps"]
    assert (count["do"], count["nodes"] % 3) == ("count", 0)
    (copy / "bad.toml").write_text(PIPELINE.replace("blue", "green"))
    assert 'bad.toml:6: invalid dummy = "green" (choose red, blue)' in run(copy, "run", "bad.toml", "m.onnx").stderr


def test_python_and_the_docs_know_both(copy: Path) -> None:
    script = """
import inspect, onnxtile, sys
sys.path.append(sys.argv[1])
from option_tables import filled
print(inspect.signature(onnxtile.plan).parameters["dummy"])
print(inspect.signature(onnxtile.count))
print(onnxtile.count("m.onnx", times=2).nodes // onnxtile.count("m.onnx").nodes)
print("dummy: colour of the plan [red]" in onnxtile.plan.__doc__)
try:
    onnxtile.plan("m.onnx", dummy="green")
except onnxtile.system.errors.UsageError as error:
    print(error.message, error.hint)
print(filled("<!-- options of plan -->\\n<!-- end of options -->\\n"))
print(filled("<!-- options of count -->\\n<!-- end of options -->\\n"))
"""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(ROOT / "docs")],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("dummy: ") and lines[0].endswith("= 'red'"), done.stderr
    assert "times: " in lines[1] and "= 1" in lines[1]
    assert lines[2:5] == ["2", "True", "invalid dummy='green' choose red, blue"]
    assert r"| `--dummy` `red\|blue` | `dummy` | red | colour of the plan |" in lines
    assert "| `--times` `N` | `times` | 1 | factor of the count |" in lines
