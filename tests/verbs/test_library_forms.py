"""How Python gives options: as numbers, texts and tables, read as on the command line, with errors in Python's words."""

import ast
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import onnx
import pytest

import onnxtile
from onnxtile import api
from onnxtile.declare.verb import parameters
from onnxtile.system.errors import UsageError
from onnxtile.tiling.limits import Limits
from tests import build

GRAPH = '<ir_version: 10, opset_import: ["": 17]> g (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) '
ANY: Any = 5
"""A value that is neither a model, nor a file, nor a text."""
BODY = "{ h = MatMul(x, w)  i = Add(h, x)  y = Relu(i) }"


@pytest.fixture(name="model")
def _model() -> onnx.ModelProto:
    return onnx.parser.parse_model(GRAPH + BODY)


def test_limits_are_keywords(model: onnx.ModelProto) -> None:
    tiled = onnxtile.tile(model, max=32, dims={"N": 4}, verify=False)
    same = onnxtile.tile(model, onnxtile.Limits.of(max=32), dims={"N": 4}, verify=False)
    assert tiled.to_dict() == same.to_dict() and tiled.result.matmuls == 4
    ready = onnxtile.tile(
        model, target="64x64x64", max="_x32x_", shapes={"x": "4x64"}, accumulate="chain", verify=False
    )
    assert {site.grid.shape for site in ready.result.tiled} == {(1, 2, 1)}
    held = onnxtile.tile(model, max="4k", dims={"N": 4}, verify=False)
    assert held.to_dict() == onnxtile.tile(model, max="4096B", dims={"N": 4}, verify=False).to_dict()


@pytest.mark.parametrize("capacity", ["256KiB", "256k", 2**18, {"arena": "256KiB"}, {"arena": 2**18}])
def test_capacities_have_units(model: onnx.ModelProto, capacity: Any) -> None:
    planned = onnxtile.plan(model, dims={"N": 4}, capacity=capacity, verify=False)
    assert [arena.capacity for arena in planned.plan.arenas] == [2**18]


@pytest.mark.parametrize(
    "patterns",
    ["Linear=MatMul-*>Add", [("Linear", "MatMul-*>Add")], ["Linear=MatMul-*>Add"], (("Linear", "MatMul-*>Add"),)],
)
def test_a_query_has_a_name(model: onnx.ModelProto, patterns: Any) -> None:
    fused = onnxtile.fuse(model, patterns, verify=False)
    assert [(one.name, len(one.calls)) for one in fused.patterns] == [("Linear", 1)]


def test_a_lone_pattern_is_one(model: onnx.ModelProto) -> None:
    assert [one.name for one in onnxtile.fuse(model, "LayerNorm", verify=False).patterns] == ["LayerNorm"]
    assert onnxtile.fuse(model, "Add->Relu", verify=False).fused == 1


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda m: onnxtile.plan(m, io="foo"), "invalid io='foo'", "choose overwrite, outputs, inside, outside"),
        (lambda m: onnxtile.plan(m, capacity={"sram": "lots"}), "invalid capacity={'sram': 'lots'}", "write 262144"),
        (lambda m: onnxtile.plan(m, dims={"N": 0}), "invalid dims={'N': 0}: give a whole number", None),
        (lambda m: onnxtile.plan(m, search="exakt"), "invalid search='exakt': 'exakt' is no planner", "'exact'?"),
        (lambda m: onnxtile.tile(m, max=0), "invalid max=0: give a whole number of at least 1", None),
        (lambda m: onnxtile.tile(m, max="64x64"), "invalid max='64x64': this is not a bound of a tile", "_x48x48"),
        (lambda m: onnxtile.tile(m, max=("64", "8x8x8")), "invalid max=('64', '8x8x8'): '8x8x8' is the second", None),
        (lambda m: onnxtile.fuse(m, lower="torch"), "invalid lower='torch'", "choose none, onnx, ort"),
        (lambda m: onnxtile.fuse(m, [("no name", "Add")]), "invalid patterns='no name'", None),
        (lambda m: onnxtile.verify(m, m, runs=0), "invalid runs=0: give a whole number from 1 to 1,000,000", None),
    ],
)
def test_errors_speak_of_parameters(model: onnx.ModelProto, call: Any, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        call(model)
    assert str(caught.value).startswith(message)
    assert hint is None or hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (onnxtile.tile, ("no limit is given", "max=64, max 64x64x64, max 256KiB, or a file with target")),
        (lambda m: onnxtile.plan(m, dims={"N": 4}, layout={"keep": "x"}), ("add io='inside'",)),
        (
            lambda m: onnxtile.tile(m, Limits(k=128, multiples=(1, 64, 1)), max=(None, 48, None)),
            ("the bound 48 of K is not a multiple of 64",),
        ),
        (lambda m: onnxtile.verify(m, m, inputs=["x.npz", {"x": 1}]), ("from ranges",)),
    ],
)
def test_errors_of_the_work_speak_of_parameters_too(model: onnx.ModelProto, call: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        call(model)
    said = f"{caught.value} ({caught.value.hint})"
    assert all(word in said for word in words) and "--" not in said, said


def test_an_unknown_keyword_names_the_function(model: onnx.ModelProto) -> None:
    with pytest.raises(
        TypeError, match=r"plan\(\) got an unexpected keyword argument 'alignmnt' \(did you mean 'alignment'\?\)"
    ):
        onnxtile.plan(model, alignmnt=64)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "verb", ["fuse", "match", "tile", "plan", "inspect", "verify", "check_plan", "fit", "fit_curve"]
)
def test_help_shows_the_forms_of_values_whose_types_have_names_of_their_own(verb: str) -> None:
    """Each form that the docstring shows is read."""
    function = getattr(onnxtile, verb)
    rows = dict(re.findall(r"^    (\w+): .*\n((?:        .*\n)*)", function.__doc__, re.MULTILINE))
    (taken,) = inspect.signature(function.from_options, eval_str=True).parameters.values()
    known = parameters(taken.annotation)
    for name, one in inspect.signature(function).parameters.items():
        is_opaque = re.search(r"[A-Z]\w*(Words|Sizes|Shapes|Inputs|Table)\b|Mapping|Capacities", str(one.annotation))
        forms = re.findall(rf"{name}=(.+?)(?=, {name}=|$)", rows.get(name, "").strip())
        assert forms or not is_opaque, name
        assert all(known[name].kind.read(ast.literal_eval(form)) is not None for form in forms)


def test_help_of_the_model_says_what_it_may_be() -> None:
    assert "the path of an ONNX file, an onnx.ModelProto or an onnx_ir.Model" in pydoc.render_doc(onnxtile.Source)
    assert all(isinstance(one, onnxtile.Source) for one in ("m.onnx", Path("m.onnx"), onnx.ModelProto()))
    assert not isinstance(7, onnxtile.Source)


@pytest.mark.parametrize("verb", ["fuse", "match", "tile", "plan", "fit", "inspect", "verify", "check_plan", "run"])
def test_a_signature_has_no_type_that_the_library_does_not_name(verb: str) -> None:
    known = {*dir(onnxtile), *("Any", "False", "Iterable", "Literal", "Mapping", "None", "Path", "Sequence", "True")}
    shown = re.sub(r"'[^']*'", "", str(inspect.signature(getattr(onnxtile, verb))))
    assert {*re.findall(r"\b[A-Z]\w*", shown)} <= known
    assert "Option" not in shown


def test_type_hints_of_every_verb_name_the_class_of_its_result() -> None:
    verbs = [verb for name in onnxtile.__all__ if hasattr(verb := getattr(onnxtile, name), "from_options")]
    returned = {verb.__name__: get_type_hints(verb)["return"] for verb in verbs}
    assert len(returned) > 10 and returned["trace"] is onnxtile.Trace
    assert all(isinstance(kind, type) for kind in returned.values())


def test_the_signature_of_fuse_has_the_type_of_its_patterns() -> None:
    from onnxtile.fusion.pattern import Patterns

    shown = str(inspect.signature(onnxtile.fuse).parameters["patterns"].annotation)
    assert shown == re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", str(Patterns))


@pytest.mark.parametrize("verb", ["fuse", "unfuse", "match", "tile", "plan", "inspect", "verify", "check_plan"])
def test_the_signature_shows_the_options(verb: str) -> None:
    function = getattr(onnxtile, verb)
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "model"
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    assert all(f"{name}: " in (function.__doc__ or "") for name in parameters if name not in {"progress", "limits"})


@pytest.mark.parametrize(
    "call",
    [
        lambda _: onnxtile.plan(ANY), lambda m: onnxtile.plan(m, io=ANY), lambda m: onnxtile.plan(m, state=ANY),
        lambda m: onnxtile.plan(m, layout=ANY), lambda m: onnxtile.plan(m, search=ANY + 0.5), lambda m: onnxtile.plan(m, target=ANY),
        lambda m: onnxtile.plan(m, dims=ANY), lambda m: onnxtile.plan(m, capacity=ANY + 0.5), lambda m: onnxtile.plan(m, progress=ANY),
        lambda m: onnxtile.fuse(m, ANY), lambda m: onnxtile.fuse(m, [ANY]), lambda m: onnxtile.match(m, ANY),
        lambda m: onnxtile.tile(m, ANY), lambda m: onnxtile.tile(m, max=ANY + 0.5), lambda m: onnxtile.tile(m, max=4, skip=ANY),
        lambda m: onnxtile.fit(m, capacity=ANY + 0.5), lambda m: onnxtile.verify(m, ANY), lambda m: onnxtile.inspect(m, tree=ANY),
        lambda m: onnxtile.check_plan(m, ANY), lambda m: onnxtile.trace(m, ANY), lambda m: onnxtile.explain(m, ANY),
        lambda m: onnxtile.inspect(m).write(ANY), lambda _: onnxtile.save(ANY, "x.onnx"), lambda _: onnxtile.option_names(ANY),
        lambda _: onnxtile.run(ANY), lambda _: onnxtile.plan_problem(ANY),
    ],
)  # fmt: skip
def test_a_wrong_type_is_a_usage_error(model: onnx.ModelProto, call: Any) -> None:
    with pytest.raises(UsageError):
        call(model)


def test_the_text_of_an_error_has_the_hint(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError) as caught:
        onnxtile.plan(model, io="insde")
    assert str(caught.value) == "invalid io='insde' (did you mean 'inside'?)"
    assert (caught.value.message, caught.value.hint) == ("invalid io='insde'", "did you mean 'inside'?")


def test_a_pipeline_is_run_from_python(tmp_path: Path) -> None:
    onnx.save(build.parsed("g (float[4,64] x) => (float[4,64] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "plan"\n[budgets]\nmax_arena = 1024\n')
    found = onnxtile.run(tmp_path / "p.toml", [tmp_path / "m.onnx"], output=tmp_path / "out")
    assert (found.passed, found.summary) == (True, "1 of 1 models passed")
    assert (tmp_path / "out" / "m.p.onnx").exists()
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "plan"\n[budgets]\nmax_arena = 1\n')
    assert not onnxtile.run(str(tmp_path / "p.toml"), str(tmp_path / "m.onnx"), dry_run=True).passed


def test_methods_of_results_are_the_verbs(model: onnx.ModelProto) -> None:
    fused = onnxtile.fuse(model, "Add->Relu", verify=False)
    for name in ("fuse", "unfuse", "tile", "plan", "fit", "inspect", "match"):
        own = inspect.signature(getattr(fused, name)).parameters
        assert list(own) == list(inspect.signature(getattr(onnxtile, name)).parameters)[1:], name
    assert fused.verify(model, dims={"N": 4}).equal
    assert fused.verify(other=model, dims={"N": 4}).equal
    planned = fused.plan(dims={"N": 4}, verify=False)
    assert planned.fit(capacity="64KiB", verify=False).fits
    assert "<svg" in planned._repr_html_()


def test_help_names_types_and_no_addresses() -> None:
    text = pydoc.render_doc(onnxtile.plan, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "plan(model: Source, *, " in text
    assert "Annotated" not in text and " at 0x" not in text and "'int | None'" not in text


README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow  # mypy reads the whole package
def test_scripts_of_users_and_of_the_readme_pass_mypy(tmp_path: Path) -> None:
    """Those with a name or a type that the library does not have do not."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "readme.py").write_text(code)
    (tmp_path / "good.py").write_text(
        "import onnxtile\n"
        "fused = onnxtile.fuse('m.onnx', 'LayerNorm', lower='onnx')\n"
        "tiled = onnxtile.tile(fused.model, max=('64x64x64', '256KiB'))\n"
        "planned = onnxtile.plan(tiled.model, capacity={'sram': '256KiB'}, dims={'N': 4}, search=('best', 10),\n"
        "    layout={'pins': {'a': 0}, 'keep': ['b']})\n"
        "size: int = planned.plan.arenas[0].size\n"
    )
    (tmp_path / "wrong.py").write_text(
        "import onnxtile\nonnxtile.tile('m.onnx', max=6.4)\nonnxtile.plan('m.onnx', alignmnt=64)\n"
        "fused = onnxtile.fuse('m.onnx')\nfused.plan(alignmnt=64)\nfused.tile(max=6.4)\n"
    )
    config = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"]
    scripts = [str(tmp_path / f"{name}.py") for name in ("readme", "good", "wrong")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *config, *scripts], capture_output=True, text=True, check=False
    )
    assert "readme.py" not in done.stdout and "good.py" not in done.stdout, done.stdout
    assert [done.stdout.count(f"wrong.py:{line}: error") for line in (2, 3, 5, 6)] == [1] * 4, done.stdout


def test_every_keyword_of_the_library_is_an_option_of_its_command() -> None:
    from onnxtile.cli.command import verbs
    from onnxtile.declare.verb import options

    for name in ("fuse", "unfuse", "tile", "plan", "inspect", "verify"):
        keywords = set(inspect.signature(getattr(api, name)).parameters) - {"model", "other", "limits", "progress"}
        assert keywords <= set(options(verbs()[name].command)), name
