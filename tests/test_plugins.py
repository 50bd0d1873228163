"""Plug-ins of other distributions: found by their entry points, used by the library and the command, and refused in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxtile
from onnxtile.planning.planners import planners
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.registry import contributions, defer
from tests.conftest import MODELS

ROOT = Path(__file__).parent.parent

PLANNER = """
from onnxtile.planning.planners import Planner, heuristic

def _place(problem):
    offsets, end = [], 0
    for buffer in problem.buffers:
        unit = buffer.alignment or problem.alignment
        offsets.append(-(-end // unit) * unit)
        end = offsets[-1] + buffer.size
    return offsets

STACK = Planner("acme-stack", "one buffer above the other", heuristic(_place))
"""
FORMAT = """
from onnxtile.report.format import Format

TEXT = Format("text", ".acme", lambda plan, options: "".join(f"{b['offset']} {b['name']}\\n" for b in plan["buffers"]).encode())
"""
ORDER = """
from onnxtile.planning.orders import Order

FILE = Order("acme-file", "the nodes as they stand in the model", lambda ground: (ground.packed(ground.own),))
"""
OPERATOR = """
from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Tileable

class Einsum(Tileable):
    name = "Einsum"

    def restate(self, node, facts):
        raise NotApplicable("acme does not tile it yet")

EINSUM = Einsum()
"""
LOWERING = """
from onnxtile.fusion.lower.lowering import Lowering, Replacement

class AcmeTwice(Lowering):
    name = "AcmeTwice"

    def to_onnx(self, site):
        return Replacement.one("Abs", (site.arguments[0].value,), since=13)

TWICE = AcmeTwice()
"""
PATTERN = """
name = "AcmeTwice"
doc = "An absolute value, taken twice."

[[variants]]
query = 'Abs->Abs'
"""
POINTS = """
[onnxtile.planners]
stack = acme_onnx.planner:STACK

[onnxtile.formats]
text = acme_onnx.formats

[onnxtile.orders]
file = acme_onnx.order:FILE

[onnxtile.operators]
einsum = acme_onnx.operator:EINSUM

[onnxtile.lowerings]
twice = acme_onnx.lowering

[onnxtile.patterns]
acme = acme_onnx.patterns
"""
MODEL = """<ir_version: 10, opset_import: ["": 17]>
g (float[4,8] x, float[8,4] w) => (float[4,4] y) {
  [first] a = Abs(x)  [second] b = Abs(a)  [product] y = Einsum<equation = "ij,jk->ik">(b, w)
}"""

Install = Callable[..., Path]


def distribution(folder: Path, points: str, **modules: str) -> None:
    """Lay a distribution "acme-onnx" into `folder`, as pip would."""
    package = folder / "acme_onnx"
    (package / "patterns").mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (package / f"{name}.py").write_text(text)
    (package / "patterns" / "twice.toml").write_text(PATTERN)
    metadata = folder / "acme_onnx-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-onnx\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)


@pytest.fixture(name="install")
def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def install(points: str = POINTS, **changed: str) -> Path:
        modules = {"planner": PLANNER, "formats": FORMAT, "order": ORDER, "operator": OPERATOR, "lowering": LOWERING}
        distribution(tmp_path / "site", points, **{**modules, **changed})
        monkeypatch.syspath_prepend(tmp_path / "site")
        return tmp_path / "site"

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_onnx"]:
        del sys.modules[name]


@pytest.fixture(name="model")
def _model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def test_planner_order_and_format_of_another_distribution(install: Install, model: Path, tmp_path: Path) -> None:
    install()
    planned = onnxtile.plan(model, search="acme-stack", order="acme-file")
    assert (planned.plan.planner, planned.plan.order) == ("acme-stack", "acme-file")
    planned.write(tmp_path / "plan.acme")
    assert (tmp_path / "plan.acme").read_text().splitlines()[
        0
    ] == f"{planned.plan.buffers[0].offset} {planned.plan.buffers[0].name}"


def test_patterns_of_another_distribution_are_a_set(install: Install, model: Path) -> None:
    install()
    for name in ("acme", "acme/AcmeTwice"):
        assert onnxtile.fuse(model, [name]).fused == 1
    assert "acme/AcmeTwice" in [one.name for one in onnxtile.option_names("patterns").names]
    assert "AcmeTwice" not in [pattern.name for pattern in onnxtile.fuse(model, verify=False).patterns]


def test_a_lowering_of_another_distribution_is_run_like_any_other(install: Install, model: Path) -> None:
    install()
    lowered = onnxtile.fuse(model, ["acme"], lower="onnx")
    assert [node.op_type for node in lowered.model.graph] == ["Abs", "Einsum"]


def test_a_lowering_of_another_distribution_that_is_wrong_is_refused(install: Install, model: Path) -> None:
    install(lowering=LOWERING.replace('"Abs"', '"Neg"'))
    lowered = onnxtile.fuse(model, ["acme"], lower="onnx")
    assert [node.op_type for node in lowered.model.graph] == ["AcmeTwice", "Einsum"]
    assert all(site.reason for site in lowered.lowered)


def test_an_operator_of_another_distribution_is_asked(install: Install, model: Path) -> None:
    install()
    tiled = onnxtile.tile(model, onnxtile.Limits.of(max=2))
    assert [(node.node, node.reason) for node in tiled.result.skipped] == [("product", "acme does not tile it yet")]


def test_the_command_lists_and_takes_them(install: Install, model: Path, tmp_path: Path) -> None:
    site = install()

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "onnxtile", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "acme-stack" in run("list", "planners") and ".acme" in run("list", "formats")
    run("plan", model, "--search", "acme-stack", "--emit", "plan.acme", "-o", "out.onnx")
    assert (tmp_path / "plan.acme").exists()


BROKEN = {
    "does not import": ("[onnxtile.planners]\nbad = acme_onnx.planner\n", {"planner": "import no_such_thing_at_all"}),
    "raises": ("[onnxtile.planners]\nbad = acme_onnx.planner\n", {"planner": "raise RuntimeError('first\\nsecond')"}),
    "is a syntax error": ("[onnxtile.planners]\nbad = acme_onnx.planner\n", {"planner": "def"}),
    "has no such name": ("[onnxtile.planners]\nbad = acme_onnx.planner:ABSENT\n", {}),
    "is something else": ("[onnxtile.planners]\nbad = acme_onnx.formats:TEXT\n", {}),
    "defines nothing": ("[onnxtile.planners]\nbad = acme_onnx\n", {}),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plug_in_is_one_line_that_names_who_brings_it(install: Install, model: Path, fault: str) -> None:
    points, modules = BROKEN[fault]
    install(points, **modules)
    with pytest.raises(OnnxtileError) as caught:
        onnxtile.plan(model, verify=False)
    message = str(caught.value)
    assert "the plug-in 'bad' of acme-onnx (group onnxtile.planners) cannot be used: " in message
    assert "\n" not in message and "acme-onnx" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ("acme = acme_onnx.planner", "not a package"),
        ("aidge = acme_onnx.patterns", "is taken"),
        ("acme = absent", "absent"),
    ],
)
def test_a_broken_set_of_patterns_is_one_line(install: Install, model: Path, point: str, reason: str) -> None:
    install(f"[onnxtile.patterns]\n{point}\n")
    with pytest.raises(OnnxtileError, match=reason) as caught:
        onnxtile.fuse(model, ["LayerNorm"])
    assert "\n" not in str(caught.value)


def test_a_name_that_is_taken_names_both_sides(install: Install) -> None:
    install(planner=PLANNER.replace("acme-stack", "best"))
    with pytest.raises(OnnxtileError, match=r"onnxtile\.planning\.planners and acme-onnx are named 'best'"):
        planners()


def test_nothing_of_others_is_imported_before_it_is_asked_for(install: Install) -> None:
    install(planner="raise SystemExit('imported')")
    assert [one.name for one in contributions("onnxtile.planners")] == ["stack"]
    assert onnxtile.option_names("formats").names
    assert "acme_onnx.planner" not in sys.modules


VERB = '''
from dataclasses import dataclass

from onnxtile.common_options import ModelArgument, ReportOptions, WatchOptions
from onnxtile.declare.verb import declared
from onnxtile.declare.verb import Outcome, Verb


@dataclass(frozen=True)
class AcmeOptions(WatchOptions):
    model: ModelArgument


@dataclass(frozen=True)
class AcmeCommand(ReportOptions, AcmeOptions):
    """Count the nodes of a model for acme."""


class AcmeResult:
    def to_dict(self):
        return {"nodes": 3}


COUNT = Verb("acme-count", AcmeCommand, lambda options: Outcome(AcmeResult(), table="", text="3 nodes\\n"))
'''


def _command(site: Path, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnxtile", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)


def test_a_verb_of_another_distribution_is_a_command(install: Install, model: Path, tmp_path: Path) -> None:
    site = install("[onnxtile.verbs]\ncount = acme_onnx.verb:COUNT\n", verb=VERB)
    assert "Count the nodes of a model for acme." in _command(site, tmp_path, "--help").stdout
    done = _command(site, tmp_path, "acme-count", model)
    assert (done.returncode, done.stdout) == (0, "3 nodes\n"), done.stderr


def test_a_verb_with_the_name_of_another_is_an_error_of_that_command_too(
    install: Install, model: Path, tmp_path: Path
) -> None:
    site = install("[onnxtile.verbs]\nplan = acme_onnx.verb:COUNT\n", verb=VERB.replace('"acme-count"', '"plan"'))
    done = _command(site, tmp_path, "plan", model)
    assert done.returncode == 2
    assert done.stderr == "error: two plug-ins in onnxtile.verbs and acme-onnx are named 'plan'\n"


def test_a_broken_verb_is_one_line_of_the_command(install: Install, tmp_path: Path) -> None:
    site = install("[onnxtile.verbs]\ncount = acme_onnx.verb:COUNT\n", verb="raise RuntimeError('no such board')")
    done = _command(site, tmp_path, "list", "planners")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the plug-in 'count' of acme-onnx (group onnxtile.verbs) cannot be used: ")
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


FOREIGN = """<ir_version: 9, opset_import: ["": 18, "acme": 1]>
g (float[4,8] x) => (float[4,8] y) <float[4,8] b> { a = Abs(x)  b = acme.HardTanh(a)  y = Neg(b) }"""
_TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.fixture(name="extending")
def _extending(tmp_path: Path) -> Callable[[str], Path]:
    """Return what installs the example of docs/extending.md that begins at the heading "An operator"."""
    text = (ROOT / "docs" / "extending.md").read_text().partition("## An operator")[2].partition("\n## ")[0]
    files = dict(_TITLED.findall(text))
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    onnx.save(onnx.parser.parse_model(FOREIGN), tmp_path / "foreign.onnx")

    def install(group: str) -> Path:
        used = {name: points for name, points in groups.items() if name.startswith(group)}
        points = "".join(f"[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in p.items()) for name, p in used.items())
        modules = {Path(name).stem: text for name, text in files.items() if name.endswith(".py")}
        distribution(tmp_path / "site", points, **modules)
        return tmp_path / "site"

    return install


def test_an_operator_of_another_distribution_is_planned_as_the_page_says(
    extending: Callable[[str], Path], tmp_path: Path
) -> None:
    site = extending("onnxtile.")
    written = ("-o", "p.onnx", "--emit", "p.certificate.json")
    done = _command(site, tmp_path, "plan", "foreign.onnx", "--no-verify", "--io", "outside", *written, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak"] == 128, "one tensor of 4 × 8 floats: HardTanh writes over it"
    assert _command(site, tmp_path, "plan", "p.onnx", "--check", "p.onnx").returncode == 0
    assert _command(site, tmp_path, "fit", "foreign.onnx", "--no-verify", "--capacity", "200").returncode == 0
    script = [sys.executable, str(ROOT / "onnxtile/check/check_account.py"), "p.onnx", "p.certificate.json"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    proved = subprocess.run(script, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert proved.returncode == 0, proved.stdout + proved.stderr


def test_an_operator_that_only_the_planner_lets_write_over_its_operand_is_refused_with_what_helps(
    extending: Callable[[str], Path], tmp_path: Path
) -> None:
    site = extending("onnxtile.families")
    done = _command(site, tmp_path, "plan", "foreign.onnx", "--no-verify")
    assert done.returncode == 1
    assert "no entry point of the group onnxtile.check lets acme::HardTanh write over it" in done.stderr
    assert "docs/extending.md" in done.stderr and "report" not in done.stderr


@pytest.mark.parametrize(
    "table", ["def", "OVER = 3", 'OVER = {"acme::HardTanh": 0}', 'OVER = {"acme::HardTanh": ["x"]}']
)
def test_a_table_of_the_check_that_is_none_is_one_line(
    extending: Callable[[str], Path], tmp_path: Path, table: str
) -> None:
    site = extending("onnxtile.")
    (site / "acme_onnx" / "check.py").write_text(table)
    done = _command(site, tmp_path, "plan", "foreign.onnx", "--no-verify")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the plug-in 'acme' of acme-onnx (group onnxtile.check) cannot be used: ")
    assert len(done.stderr.splitlines()) == 1


# Modules that are executed at their first use.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a new package with a module in it, both deferred."""
    name = "deferred_for_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from deferred_for_a_test.inner import ONE\nTWO = ONE + 1\n", encoding="utf-8")
    (folder / "inner.py").write_text("ONE = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    defer(name)
    yield name
    for loaded in [key for key in sys.modules if key.startswith(name)]:
        del sys.modules[loaded]


def test_a_module_is_executed_when_an_attribute_is_read(package: str) -> None:
    module = __import__(package)
    again = __import__(package)
    assert again is module
    assert not hasattr(module, "__module__")  # which a package asks each name that it offers
    assert "TWO" not in vars(module)
    assert module.TWO == 2
    assert not hasattr(module, "THREE")


def test_a_module_inside_of_it_is_executed_once(package: str) -> None:
    module = __import__(package)
    inner = __import__(f"{package}.inner", fromlist=["ONE"])
    assert inner.ONE == 1
    assert module.inner is inner
    assert sys.modules[f"{package}.inner"] is inner


_MASKED = """<ir_version: 8, opset_import: ["": 9]> masked (float[2, 3] x) => (float[2, 300] y)
<int64[2] asked = {-1, 3}, int64[2] minus = {-1, -1}> {
  shape = Shape (x)
  rank = Shape (shape)
  ones = ConstantOfShape <value = int64[1] {1}> (rank)
  known = Equal (asked, minus)
  sizes = Where (known, ones, asked)
  wide = Expand (x, sizes)
  full = MatMul (wide, weights)
  y, mask = Dropout (full)
}"""
"""onnx follows neither the sizes that Where chooses nor the mask of the Dropout; the weights, a Constant, it is not shown."""


@pytest.mark.parametrize(
    ("verb", "is_masked", "unused"),
    [
        ("plan", False, {"sympy.core"}),
        ("plan", True, {"sympy.core"}),
        ("fuse", False, {"sympy.core", "networkx", "onnxtile.fusion.lower.lowering"}),
    ],
)
def test_a_model_without_symbols_needs_no_sympy(tmp_path: Path, verb: str, is_masked: bool, unused: set[str]) -> None:
    code = (
        "import sys; from onnxtile.__main__ import main\n"
        f"try: main()\nfinally: print(sorted({unused!r} & sys.modules.keys()), file=sys.stderr)"
    )
    model = tmp_path / "masked.onnx" if is_masked else MODELS / "transformer.onnx"
    if is_masked:
        proto = onnx.parser.parse_model(_MASKED)
        weights = onnx.numpy_helper.from_array(np.ones((3, 300), np.float32))
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["weights"], value=weights))
        onnx.save(proto, model)
    arguments = [verb, str(model), "-o", str(tmp_path / "m.onnx")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert verb != "plan" or "unplanned                    0" in done.stdout
