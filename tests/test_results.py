"""Every verb takes a path, a ModelProto or an onnx_ir model, changes none of them, and returns a typed result."""

from __future__ import annotations

import json
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.declare.plan_document import document_of
from onnxtile.declare.verb import VerbResult
from onnxtile.model.save import to_bytes
from onnxtile.report.format import Format
from onnxtile.system.errors import CheckFailed, ModelError, OnnxtileError, QueryError, UsageError
from onnxtile.system.registry import discover

# The library's face: every verb takes a path, a ModelProto or an onnx_ir model, changes none of them, and returns a
# typed result.


TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[4,64] x) => (float[4,8] y) { [product] h = MatMul(x, w)  [sum] i = Add(h, b)  [end] y = Relu(i) }"""


def proto() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("w", (64, 8)), ("b", (8,))):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    return model


VERBS: dict[str, Callable[..., Any]] = {
    "match": lambda model, **how: onnxtile.match(model, "MatMul-*>Add", **how),
    "fuse": lambda model, **how: onnxtile.fuse(model, ["MatMul-*>Add"], **how),
    "tile": lambda model, **how: onnxtile.tile(model, onnxtile.Limits.of(max=32), **how),
    "plan": lambda model, **how: onnxtile.plan(model, alignment=64, **how),
    "inspect": onnxtile.inspect,
    "verify": lambda model, **how: onnxtile.verify(model, model, **how),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_form_of_a_model_gives_the_same(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto(), path)
    results = [VERBS[verb](source) for source in (path, str(path), proto(), ir.from_proto(proto()))]
    contents = [result.to_dict() for result in results]
    for content in contents:  # a model in memory has no file to take the digest of
        content.pop("model", None)
        content.pop("digest", None)
        content.pop("model_digest", None)
    assert all(content == contents[0] for content in contents)
    models = [to_bytes(result.model) for result in results if hasattr(result, "model")]
    assert len(set(models)) <= 1


@pytest.mark.parametrize("verb", VERBS)
def test_results_are_json(verb: str) -> None:
    content = VERBS[verb](proto()).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == json.loads(json.dumps(content))


@pytest.mark.parametrize("verb", VERBS)
def test_the_model_of_the_caller_stays_as_it_is(verb: str) -> None:
    source = proto()
    VERBS[verb](source)
    assert source == proto()
    model = ir.from_proto(proto())
    before = to_bytes(model)
    VERBS[verb](model)
    assert to_bytes(model) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_file_is_a_model_error(tmp_path: Path, verb: str) -> None:
    with pytest.raises(ModelError, match="no such file"):
        VERBS[verb](tmp_path / "absent.onnx")


def test_fuse_and_unfuse_say_what_they_did() -> None:
    fused = onnxtile.fuse(proto(), ["MatMul-*>Add"])
    assert (fused.fused, fused.nodes_before, fused.nodes_after) == (1, 3, 2)
    assert fused.verdict is not None and fused.verdict.equal
    assert [site.equal for site in fused.sites] == [True]
    restored = onnxtile.unfuse(fused.model)
    assert restored.to_dict()["unfused"] == {"MetaOp": 1}
    assert [node.name for node in restored.model.graph] == ["product", "sum", "end"]


def test_without_verification_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtile.verbs.flows import fuse as fusing

    monkeypatch.setattr(fusing, "run_original", pytest.fail)
    result = onnxtile.fuse(proto(), ["MatMul-*>Add"], verify=False)
    assert result.verdict is None
    assert result.sites == ()


STAGES = {
    "match": ["reading the model", "matching"],
    "fuse": ["reading the model", "matching", "verifying", "running the original", "comparing", "verifying each different site"],
    "tile": [
        *("reading the model", "inferring shapes", "tiling", "verifying"),
        *("verifying each different product", "running the original", "comparing", "planning the arena"),
    ],
    "plan": ["reading the model", "inferring shapes", "planning", "running the model", "running inside the arena"],
    "verify": ["reading the models", "running the first model", "running the original", "running the second model", "comparing"],
}  # fmt: skip


@pytest.mark.parametrize("verb", STAGES)
def test_progress_hears_the_stages_and_counts_their_parts(verb: str) -> None:
    heard: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int = 0, total: int = 0, /) -> None:
        heard.append((stage, done, total))

    VERBS[verb](proto(), progress=progress)
    assert list(dict.fromkeys(stage for stage, _, _ in heard if stage != "searching")) == STAGES[verb]
    assert all(0 <= done < total for _, done, total in heard if total)
    assert any(total for _, _, total in heard) == (verb != "match")


def test_without_patterns_the_whole_library_is_used(transformer: Path) -> None:
    names = {pattern.name for pattern in onnxtile.fuse(transformer, verify=False).patterns}
    assert {"LayerNorm", "GeLU"} <= names


def test_save_asks_before_it_overwrites_the_source(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto(), path)
    result = onnxtile.fuse(path, ["MatMul-*>Add"])
    with pytest.raises(UsageError, match="overwritten"):
        onnxtile.save(result.model, path, source=path)
    onnxtile.save(result.model, path, source=path, force=True)
    assert len(onnx.load(path).graph.node) == 2


def test_errors_have_one_root_and_an_exit_code() -> None:
    with pytest.raises(QueryError) as caught:
        onnxtile.match(proto(), "MatMul->")
    assert isinstance(caught.value, OnnxtileError)
    assert (caught.value.exit_code, CheckFailed.exit_code) == (2, 1)


def test_only_the_verbs_are_public() -> None:
    assert {"Limits", "fuse", "match", "plan", "save", "tile", "unfuse", "verify"} <= set(onnxtile.__all__)
    assert all(getattr(onnxtile, name) is not None for name in onnxtile.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        onnxtile.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018


def test_a_verb_does_not_wait_for_what_another_needs() -> None:
    others = {"networkx", "onnxruntime", "onnxtile.fusion.pattern", "onnxtile.planning.model_plan"}
    script = f"import sys, onnxtile.api as api; api.tile; print(*({others!r} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert out.split() == []


def test_a_bare_problem_is_planned_without_what_models_need(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,3,4\n")
    script = (
        "import sys, onnxtile.cli as cli; sys.argv = ['onnxtile', 'plan', 'p.csv', '-q', '--emit', 'p.json', '--json', 'q.json']\n"
        "try: cli.main()\nexcept SystemExit as end: print(end.code, *({'onnx', 'onnx_ir', 'sympy', 'numpy.ma'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["0"]
    plan, result = (json.loads((tmp_path / name).read_text()) for name in ("p.json", "q.json"))
    assert plan["buffers"] == result["buffers"]
    assert plan.keys() <= result.keys()


def test_every_name_of_the_library_stands_for_something() -> None:
    from onnxtile import api

    assert all(getattr(api, name) is not None for name in api.__all__)
    assert set(api._HOME_OF) == set(api.__all__)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        api.nothing_like_it  # noqa: B018


@pytest.mark.parametrize("verb", [name for name in onnxtile.__all__ if name not in {"Source", "__version__"}])
def test_a_name_means_one_thing_and_can_be_pickled(verb: str) -> None:
    found = getattr(onnxtile, verb)
    assert getattr(onnxtile, verb) is found and verb in dir(onnxtile)
    assert pickle.loads(pickle.dumps(found)) is found


def test_no_package_has_the_name_of_a_verb() -> None:
    assert not {module.name for module in pkgutil.iter_modules(onnxtile.__path__)} & set(onnxtile.__all__)


# Results: one line of text, a table in a notebook, files by their endings, and the next verb without a file between.


def _check() -> VerbResult:
    return onnxtile.check_plan(proto(), onnxtile.plan(proto(), verify=False).plan)


def _planned_tflite() -> VerbResult:
    from tests.deployment.networks import network  # skips where the extra is not installed

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(network(1))
        return onnxtile.plan_tflite(path, verify=False)


def _run() -> VerbResult:
    with TemporaryDirectory() as folder:
        onnx.save(proto(), f"{folder}/net.onnx")
        Path(folder, "p.toml").write_text('[[steps]]\ndo = "fuse"\nverify = false\n')
        return onnxtile.run(f"{folder}/p.toml", [f"{folder}/net.onnx"])


RESULTS: dict[str, Callable[[], VerbResult]] = {
    "match": lambda: onnxtile.match(proto(), "MatMul-*>Add"),
    "fuse": lambda: onnxtile.fuse(proto(), ["MatMul-*>Add"]),
    "explain": lambda: onnxtile.explain(proto(), "LayerNorm"),
    "unfuse": lambda: onnxtile.fuse(proto(), ["MatMul-*>Add"]).unfuse(),
    "tile": lambda: onnxtile.tile(proto(), onnxtile.Limits.of(max=32)),
    "fit": lambda: onnxtile.fit(proto(), capacity="smallest"),
    "the curve of fit": lambda: onnxtile.fit_curve(proto()),
    "plan": lambda: onnxtile.plan(proto()),
    "a plan alone": lambda: onnxtile.plan(proto(), verify=False).plan,
    "a TensorFlow Lite model": _planned_tflite,
    "check": _check,
    "inspect": lambda: onnxtile.inspect(proto()),
    "trace": lambda: onnxtile.trace(proto(), ["Relu"]),
    "verify": lambda: onnxtile.verify(proto(), proto()),
    "list": lambda: onnxtile.option_names("planners"),
    "pattern": lambda: onnxtile.draft_pattern(proto(), ["product", "sum"]),
    "run": _run,
}


@cache
def made(name: str) -> VerbResult:
    """Return the result, made once: none is changed."""
    return RESULTS[name]()


def every(kind: Any) -> set[Any]:
    """Return the subclasses of `kind`, at any depth."""
    return {kind}.union(*(every(below) for below in kind.__subclasses__()))


@pytest.fixture(name="result", params=RESULTS)
def _result(request: pytest.FixtureRequest) -> VerbResult:
    return made(request.param)


def test_the_text_of_a_result_is_one_short_line(result: VerbResult) -> None:
    text = repr(result)
    assert text.startswith(f"<{type(result).__name__}: ")
    assert "\n" not in text and len(text) < 200


def test_every_kind_of_result_is_tried_and_has_the_short_text() -> None:
    tried = {type(made(name)) for name in RESULTS}
    ends = {kind for kind in every(VerbResult) if not kind.__abstractmethods__ and not kind.__subclasses__()}
    assert {kind for kind in ends if kind.__module__.startswith("onnxtile.")} <= tried
    assert all(kind.__repr__ is VerbResult.__repr__ for kind in every(VerbResult))


def test_the_text_of_a_large_model_is_no_longer(transformer: Path) -> None:
    fused = onnxtile.fuse(transformer, verify=False)
    for result in (fused, fused.tile(onnxtile.Limits.of(max=16), verify=False), fused.plan(verify=False)):
        assert len(repr(result)) < 200
        assert len(result._repr_html_()) < 200_000


def test_a_notebook_shows_a_table_without_scripts(result: VerbResult) -> None:
    html = result._repr_html_()
    assert ("<table>" in html or "<pre>" in html or "<p>" in html) and "<script" not in html


def test_a_notebook_shows_names_as_text() -> None:
    model = proto()
    model.graph.node[0].name = "<script>alert(1)</script>"
    html = onnxtile.inspect(model)._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html


def test_every_result_is_written_as_json(result: VerbResult, tmp_path: Path) -> None:
    result.write(tmp_path / "result.json")
    written = json.loads((tmp_path / "result.json").read_text("utf-8"))
    content = result.plan.to_dict() if isinstance(result, onnxtile.PlannedModel) else result.to_dict()
    # The file of a plan leaves out how it was found.
    assert written == json.loads(json.dumps(document_of(content) if result.verb == "plan" else content))


@pytest.mark.parametrize(
    "ending",
    [
        form.suffix
        for name, form in discover("onnxtile.report.formats", Format).items()
        if name not in {"constants", "certificate", "c"}
    ],
)
def test_a_plan_is_written_in_every_format(tmp_path: Path, ending: str) -> None:
    if ending == ".png":
        pytest.importorskip("resvg_py", reason="the extra pictures is not installed")
    planned = onnxtile.plan(proto(), verify=False)
    planned.write(tmp_path / f"plan{ending}")
    planned.plan.write(str(tmp_path / f"again{ending}"))
    (form,) = (form for form in discover("onnxtile.report.formats", Format).values() if form.suffix == ending)
    assert form.render(planned.plan.to_dict()) == (tmp_path / f"plan{ending}").read_bytes()
    assert (tmp_path / f"again{ending}").stat().st_size > 0


def test_other_endings_are_those_of_the_verb(tmp_path: Path) -> None:
    onnxtile.inspect(proto()).write(tmp_path / "nodes.csv")
    assert (tmp_path / "nodes.csv").read_text().startswith("node,operator")
    onnxtile.draft_pattern(proto(), ["product", "sum"]).write(tmp_path / "pattern.toml")
    assert onnxtile.fuse(proto(), [str(tmp_path / "pattern.toml")]).fused == 1
    onnxtile.trace(proto(), ["Relu"]).write(tmp_path / "values.npz")
    assert np.load(tmp_path / "values.npz")["y"].shape == (4, 8)


def test_an_ending_without_a_format_is_an_error_that_names_the_others(result: VerbResult, tmp_path: Path) -> None:
    with pytest.raises(onnxtile.UsageError, match="has this ending") as caught:
        result.write(tmp_path / "result.docx")
    assert ".json" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_verbs_follow_each_other_without_a_file() -> None:
    fused = onnxtile.fuse(proto(), ["MatMul-*>Add"])
    planned = fused.tile(onnxtile.Limits.of(max=32)).plan(alignment=16)
    assert (fused.fused, planned.plan.alignment) == (1, 16)
    assert planned.verify(proto()).equal
    assert fused.unfuse().fuse("MatMul-*>Add").fused == 1
    assert len(fused.match("MetaOp").matches) == 1
    assert [layer.node for layer in fused.inspect().layers][-1] == "end"


def test_a_chain_does_what_the_verbs_do_one_by_one(tmp_path: Path) -> None:
    onnxtile.fuse(proto(), ["MatMul-*>Add"]).tile(onnxtile.Limits.of(max=32)).save(tmp_path / "chained.onnx")
    onnxtile.save(onnxtile.fuse(proto(), ["MatMul-*>Add"]).model, tmp_path / "fused.onnx")
    tiled = onnxtile.tile(tmp_path / "fused.onnx", onnxtile.Limits.of(max=32))
    onnxtile.save(tiled.model, tmp_path / "single.onnx")
    assert (tmp_path / "chained.onnx").read_bytes() == (tmp_path / "single.onnx").read_bytes()


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_tiled_model_is_saved_whole_however_it_is_held(tmp_path: Path, is_asked_for: bool) -> None:
    tiled = onnxtile.tile(proto(), onnxtile.Limits.of(max=32), verify=False)
    if is_asked_for:
        assert tiled.model.graph.num_nodes() > 3
    tiled.save(tmp_path / "tiled.onnx")
    assert onnxtile.verify(proto(), tmp_path / "tiled.onnx").equal
    assert len(onnx.load(tmp_path / "tiled.onnx").graph.node) == tiled.nodes_after


def test_the_file_that_was_read_is_overwritten_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto(), path)
    planned = onnxtile.fuse(path, ["MatMul-*>Add"]).plan(verify=False)
    with pytest.raises(onnxtile.UsageError, match="overwritten"):
        planned.save(path)
    assert len(onnx.load(path).graph.node) == 3
    planned.save(path, force=True)
    assert len(onnx.load(path).graph.node) == 2


@pytest.mark.parametrize("name", ["check", "inspect", "verify", "list", "pattern"])
def test_results_without_a_model_can_be_pickled(name: str) -> None:
    result: Any = made(name)
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()


def test_names_of_the_library_are_those_of_dir() -> None:
    public = {name for name in dir(onnxtile) if not name.startswith("_")}
    assert public == set(onnxtile.__all__) - {"__version__"}
    assert onnxtile.ModelError.__module__ == "onnxtile.system.errors"
    assert issubclass(onnxtile.Infeasible, onnxtile.OnnxtileError) and onnxtile.__version__.count(".") == 2
