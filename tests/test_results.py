"""Results: one line of text, a table in a notebook, files by their endings, and the next verb without a file between."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.declare.verb import VerbResult
from onnxtile.report.format import Format
from onnxtile.report.formats.to_json import published
from onnxtile.system.registry import discover

TEXT = """<ir_version: 10, opset_import: ["": 17]>
g (float[4,64] x) => (float[4,8] y) { [product] h = MatMul(x, w)  [sum] i = Add(h, b)  [end] y = Relu(i) }"""


def proto() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("w", (64, 8)), ("b", (8,))):
        model.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name))
    return model


def _check() -> VerbResult:
    return onnxtile.check_plan(proto(), onnxtile.plan(proto(), verify=False).plan)


def _planned_tflite() -> VerbResult:
    from tests.deployment.networks import network  # skips where the extra is not installed

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        path.write_bytes(network(1))
        return onnxtile.plan_tflite(path, verify=False)


RESULTS: dict[str, Callable[[], VerbResult]] = {
    "match": lambda: onnxtile.match(proto(), "MatMul-*>Add"),
    "fuse": lambda: onnxtile.fuse(proto(), ["MatMul-*>Add"]),
    "explain": lambda: onnxtile.explain(proto(), "LayerNorm"),
    "unfuse": lambda: onnxtile.fuse(proto(), ["MatMul-*>Add"]).unfuse(),
    "tile": lambda: onnxtile.tile(proto(), onnxtile.Limits.of(max=32)),
    "fit": lambda: onnxtile.fit(proto(), smallest=True),
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
    assert written == json.loads(json.dumps(published(content) if result.verb == "plan" else content))


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
