"""Models through pipelines: one and many, here and on a cluster, with failures, budgets and workers that die."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

from onnxtile.declare.verb import Outcome, Verb
from onnxtile.pipeline.file import Destination, Pipeline, PipelineBudgets, PipelineStep, from_file
from onnxtile.pipeline.run import Workers, run_all, run_one
from onnxtile.report.table import Table
from onnxtile.report.tables import for_run
from onnxtile.system.errors import UsageError
from onnxtile.system.long_work import Progress, silent
from onnxtile.verbs.list import OptionNames
from onnxtile.verbs.unfuse import UnfuseOptions
from tests.build import parsed

FUSE = '[[steps]]\ndo = "fuse"\nverify = false'
STEPS = """
[[steps]]
do = "fuse"
patterns = ["LayerNorm", "GeLU"]
[[steps]]
do = "tile"
max = 64
verify = false
[[steps]]
do = "plan"
emit = ["json", ".csv"]
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[[str], Pipeline]:
    def made(text: str) -> Pipeline:
        path = tmp_path / "deploy.toml"
        path.write_text(text)
        return from_file(path)

    return made


@pytest.fixture
def model(tmp_path: Path, shallow: Path) -> Path:
    shutil.copyfile(shallow, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_model_goes_through_every_step(pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    report = run_one(
        pipeline(STEPS + '[[steps]]\ndo = "verify"'), model, Destination(), lambda stage, *_: heard.append(stage)
    )
    assert report.passed, report.error
    assert [name for name, _ in report.steps] == ["fuse", "tile", "plan", "verify"]
    figures = report.summary()["figures"]
    assert figures["fused_by"]["LayerNorm"] > 0
    assert figures["tiles"] > 0 and figures["arena"] > 0 and figures["error"] < 1e-3
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".toml") == [
        "net.deploy.onnx", "net.deploy.plan.csv", "net.deploy.plan.json", "net.deploy.report.json", "net.onnx",
    ]  # fmt: skip
    onnx.checker.check_model(tmp_path / "net.deploy.onnx")
    written = json.loads((tmp_path / "net.deploy.report.json").read_text())
    assert written["figures"] == figures
    assert [step["do"] for step in written["steps"]] == ["fuse", "tile", "plan", "verify"]
    assert "matching" in heard


def test_budgets_that_are_not_met_write_no_model(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    made = pipeline(STEPS + "[budgets]\nmax_arena = 1024\nmin_fused = {LayerNorm = 1, GeLU = 999}")
    report = run_one(made, model, Destination())
    assert not report.passed and report.error is None
    assert {one.budget: one.met for one in report.budgets} == {
        "max_arena": False, "min_fused.LayerNorm": True, "min_fused.GeLU": False,
    }  # fmt: skip
    assert not (tmp_path / "net.deploy.onnx").exists()
    assert (tmp_path / "net.deploy.report.json").exists()


def test_a_budget_of_one_model_replaces_that_of_all(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    shutil.copyfile(model, tmp_path / "other.onnx")
    limits = '[budgets]\nmax_arena = 1\n[budgets.models."other.onnx"]\nmax_arena = "1GiB"'
    made = pipeline(f'[[steps]]\ndo = "plan"\nverify = false\n{limits}')
    reports = [run_one(made, path, Destination(dry_run=True)) for path in (model, tmp_path / "other.onnx")]
    assert [report.passed for report in reports] == [False, True]
    assert [one.limit for report in reports for one in report.budgets] == [1, 2**30]


def test_sizes_are_for_the_models_that_have_these_dimensions(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    open_ = parsed("open (float[batch, 8] x) => (float[batch, 8] y) { y = Relu(x) }")
    onnx.save_model(open_, tmp_path / "open.onnx")
    text = '[[steps]]\ndo = "plan"\n[steps.models."open*"]\ndims = {batch = 3}'
    outcome = run_all(pipeline(text), [model, tmp_path / "open.onnx"], Destination(tmp_path / "out"))
    assert [report.passed for report in outcome.reports] == [True, True]
    assert outcome.reports[1].steps[0][1]["dims"] == {"batch": 3}


def test_an_unplanned_tensor_fails_the_budgets_of_a_plan(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> free (float[4,3] x) => (int64[2,N] y) { y = NonZero(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    made = pipeline('[[steps]]\ndo = "plan"\nverify = false\n[budgets]\nmax_arena = 1024\noptimal = true')
    report = run_one(made, tmp_path / "net.onnx", Destination())
    assert report.error is None and not report.passed
    assert {one.budget: (one.value, one.met) for one in report.budgets} == {
        "max_arena": (None, False), "optimal": (False, False),
    }  # fmt: skip
    failed = for_run({"pipeline": "p", "passed": 0, "failed": 1, "models": [report.summary()]})[1]
    assert isinstance(failed, Table)
    assert "max_arena: unplanned, and is to be at most 1,024" in map(str, failed.columns[1].cells)


def test_a_dry_run_writes_nothing(pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    made = pipeline('[[steps]]\ndo = "fuse"\nverify = false')
    before = sorted(tmp_path.iterdir())
    assert run_one(made, model, Destination(dry_run=True)).passed
    assert sorted(tmp_path.iterdir()) == before


def test_a_failure_names_its_step_and_what_needs_no_pattern(
    pipeline: Callable[[str], Pipeline], tmp_path: Path
) -> None:
    graph = "g (float[2,4] x, float[4] s) => (float[2,4] y) { y = LayerNormalization (x, s) }"
    onnx.save(parsed(graph), tmp_path / "net.onnx")
    fused = pipeline('[[steps]]\ndo = "fuse"\npatterns = ["LayerNorm"]')
    report = run_one(fused, tmp_path / "net.onnx", Destination(dry_run=True))
    assert report.error == "fuse: no match (already one node: LayerNormalization 1)"
    planned = pipeline('[[steps]]\ndo = "plan"\ncapacity = 1')
    assert str(run_one(planned, tmp_path / "net.onnx", Destination(dry_run=True)).error).startswith("plan: ")


@pytest.fixture
def models(tmp_path: Path, shallow: Path) -> list[Path]:
    """Three files, of which the second is no model."""
    files = [tmp_path / name for name in ("a.onnx", "broken.onnx", "b.onnx")]
    for file in files:
        shutil.copyfile(shallow, file)
    files[1].write_text("this is no model")
    return files


@pytest.mark.parametrize("workers", [Workers(), Workers(2), Workers(2, "threading")], ids=str)
def test_a_model_that_fails_does_not_stop_the_others(
    pipeline: Callable[[str], Pipeline], models: list[Path], tmp_path: Path, workers: Workers
) -> None:
    heard: list[str] = []
    result = run_all(
        pipeline('[[steps]]\ndo = "fuse"\nverify = false'),
        models,
        Destination(tmp_path / "out"),
        workers,
        lambda stage, *_: heard.append(stage),
    )
    assert [report.model for report in result.reports] == models
    assert [report.passed for report in result.reports] == [True, False, True]
    assert "not an ONNX model" in (result.reports[1].error or "")
    assert (result.to_dict()["passed"], result.to_dict()["failed"]) == (2, 1)
    assert (tmp_path / "out" / "a.deploy.onnx").exists() and not (tmp_path / "out" / "broken.deploy.onnx").exists()
    assert heard


def test_it_is_the_same_wherever_it_runs(
    pipeline: Callable[[str], Pipeline], models: list[Path], tmp_path: Path
) -> None:
    made = pipeline('[[steps]]\ndo = "fuse"\nverify = false')
    for folder, workers in (("one", Workers()), ("two", Workers(2))):
        run_all(made, models[::2], Destination(tmp_path / folder), workers)
    for name in ("a.deploy.onnx", "b.deploy.onnx"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.fixture
def cluster() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    # The worker is a thread of this process: one of its own would import all modules again.
    options = {"processes": False, "protocol": "tcp", "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, **options) as made:
        yield made.scheduler_address


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_there(
    pipeline: Callable[[str], Pipeline], models: list[Path], tmp_path: Path, cluster: str
) -> None:
    workers = Workers(2, "dask", cluster)
    result = run_all(pipeline('[[steps]]\ndo = "fuse"\nverify = false'), models, Destination(tmp_path / "out"), workers)
    assert [report.passed for report in result.reports] == [True, False, True]
    assert (tmp_path / "out" / "b.deploy.onnx").exists()


def listening() -> set[tuple[str, int]]:
    """Return where this process and those that it has started listen, seen from outside."""
    psutil = pytest.importorskip("psutil")
    main = psutil.Process()
    return {
        (made.laddr.ip.removeprefix("::ffff:"), made.laddr.port)
        for one in (main, *main.children(recursive=True))
        for made in one.net_connections(kind="inet")
        if made.status == psutil.CONN_LISTEN
    }


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of something that accepts and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("address", ["nobody", "tcp://127.0.0.1:9", "mute"])
def test_a_scheduler_that_does_not_answer(
    pipeline: Callable[[str], Pipeline], models: list[Path], mute: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("onnxtile.pipeline.run._PATIENCE", 0.5)
    workers = Workers(2, "dask", mute if address == "mute" else address)
    for some in (models, models[:1]):
        with pytest.raises(UsageError, match=f"no dask scheduler answers at {workers.scheduler}: ."):
            run_all(pipeline('[[steps]]\ndo = "fuse"'), some, Destination(), workers)


def _step(name: str, run: Callable[[UnfuseOptions], Outcome]) -> PipelineStep:
    return PipelineStep(Verb(name, UnfuseOptions, run, UnfuseOptions), UnfuseOptions(None))  # type: ignore[arg-type]


def require_two_of_three(models: list[Path], backend: str, progress: Progress) -> None:
    """Run the models by two workers, of which one dies."""

    def perhaps_die(options: UnfuseOptions) -> Outcome:
        if Path(str(options.model)).name == "broken.onnx":
            os._exit(9)
        return Outcome(OptionNames("none", "none", ()), "")

    pipeline = Pipeline("p", (_step("die", perhaps_die),), PipelineBudgets(), (), "{name}.p.onnx")
    result = run_all(pipeline, models, Destination(), Workers(2, backend), progress)
    assert [report.passed for report in result.reports] == [True, False, True]
    assert "died" in (result.reports[1].error or "")


def test_a_worker_that_dies_is_reported_and_the_others_go_on(models: list[Path]) -> None:
    require_two_of_three(models, "loky", silent)


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_its_own_listens_to_this_machine_only_and_outlives_a_worker(models: list[Path]) -> None:
    """On free ports: those on which a dashboard is expected may be another's."""
    pytest.importorskip("distributed")
    before, found = listening(), set[tuple[str, int]]()
    require_two_of_three(models, "dask", lambda *_: found.update(listening() - before))
    assert {address for address, _ in found} == {"127.0.0.1"}
    assert not {port for _, port in found} & {8786, 8787}


def test_a_bug_shows_in_the_report_of_its_model(tmp_path: Path) -> None:
    def fail(_options: UnfuseOptions) -> Outcome:
        raise ZeroDivisionError("by\nzero")

    pipeline = Pipeline("p", (_step("fail", fail),), PipelineBudgets(), (), "{name}.p.onnx")
    report = run_one(pipeline, tmp_path / "m.onnx", Destination(dry_run=True))
    assert report.error == "internal error: ZeroDivisionError: by zero"


def test_models_of_one_name_keep_their_folders(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    models = [tmp_path / folder / "net.onnx" for folder in ("one", "two/deep")]
    for other in models:
        other.parent.mkdir(parents=True)
        shutil.copyfile(model, other)
    assert run_all(pipeline(FUSE), models, Destination(tmp_path / "out")).passed
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.onnx"))
    assert written == ["one/net.deploy.onnx", "two/deep/net.deploy.onnx"]


def test_one_model_named_twice(pipeline: Callable[[str], Pipeline], model: Path) -> None:
    with pytest.raises(UsageError, match="written to one file"):
        run_all(pipeline(FUSE), [model, model])


def test_what_one_run_wrote_is_not_read_by_the_next(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    assert run_all(pipeline(FUSE), [model]).passed
    before = (tmp_path / "net.deploy.onnx").read_bytes()
    with pytest.raises(UsageError, match=r"net\.deploy\.onnx is to be read, and is what"):
        run_all(pipeline(FUSE), sorted(tmp_path.glob("*.onnx")))
    assert (tmp_path / "net.deploy.onnx").read_bytes() == before


def test_a_file_where_a_folder_should_be(pipeline: Callable[[str], Pipeline], model: Path) -> None:
    with pytest.raises(UsageError, match=r"net\.onnx"):
        run_all(pipeline(FUSE), [model], Destination(model))


def test_no_model(pipeline: Callable[[str], Pipeline]) -> None:
    with pytest.raises(UsageError, match="no model"):
        run_all(pipeline('[[steps]]\ndo = "fuse"'))


@pytest.mark.parametrize(
    "arguments", [(0, "loky", None), (2, "spark", None), (2, "loky", "tcp://x:1"), (-1, "dask", None)]
)
def test_workers_that_make_no_sense(arguments: tuple[int, str, str | None]) -> None:
    with pytest.raises(UsageError):
        Workers(*arguments)


@pytest.mark.parametrize(
    ("taken", "workers"),
    [
        ("b.deploy.report.json", Workers()),
        ("b.deploy.onnx", Workers()),
        ("b.deploy.onnx", Workers(2)),
        ("b.deploy.plan.csv", Workers()),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_written_is_in_the_report_of_its_model(
    pipeline: Callable[[str], Pipeline], models: list[Path], tmp_path: Path, taken: str, workers: Workers
) -> None:
    """A folder stands in its place."""
    shutil.copyfile(models[0], tmp_path / "c.onnx")
    (tmp_path / taken).mkdir()
    made = pipeline(FUSE + '\n[[steps]]\ndo = "plan"\nemit = ["csv"]\nverify = false')
    result = run_all(made, [*models[::2], tmp_path / "c.onnx"], Destination(), workers)
    assert [report.passed for report in result.reports] == [True, False, True]
    assert f"{taken} is a folder" in str(result.to_dict()["models"][1]["error"])
    assert (tmp_path / "c.deploy.onnx").exists() and not (tmp_path / "b.deploy.onnx").is_file()
    if "report" not in taken:
        assert f"{taken} is a folder" in json.loads((tmp_path / "b.deploy.report.json").read_text())["error"]


def test_a_full_disk_is_in_the_report_of_its_model(
    pipeline: Callable[[str], Pipeline], models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxtile.verbs.flows.results import save

    def full(model: object, path: Path, **options: object) -> None:
        if path.name == "a.deploy.onnx":
            raise UsageError(f"{path} cannot be written: No space left on device")
        save(model, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("onnxtile.pipeline.run.save", full)
    made = pipeline(FUSE + '\n[[steps]]\ndo = "plan"\nemit = ["csv"]\nverify = false')
    result = run_all(made, models[::2])
    assert [report.passed for report in result.reports] == [False, True]
    assert "No space left" in json.loads((tmp_path / "a.deploy.report.json").read_text())["error"]
    assert not (tmp_path / "a.deploy.plan.csv").exists() and not list(tmp_path.glob(".onnxtile*"))


PLAN = '[[steps]]\ndo = "plan"\nverify = false\n'


def test_files_of_a_model_are_not_written_over_each_other_or_over_what_is_read(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="the run writes"):
        pipeline(PLAN + 'emit = ["report.json"]')
    made = pipeline(PLAN + 'emit = ["json"]')
    for name in ("net.deploy.onnx", "net.deploy.plan.json", "net.deploy.report.json"):
        with pytest.raises(UsageError, match=f"{name} has another use"):
            run_all(made, [model], reserved=[tmp_path / name])
    other = tmp_path / "net.deploy.plan.json"
    shutil.copyfile(model, other)
    with pytest.raises(UsageError, match="is to be read"):
        run_all(made, [model, other])
    assert run_one(made, model, Destination()).passed
    before = other.read_bytes()
    with pytest.raises(UsageError, match="has another use"):
        run_all(pipeline(PLAN + 'emit = ["html", "json"]\ncompare = "net.deploy.plan.json"'), [model])
    assert other.read_bytes() == before
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("name", ["net.deploy.onnx", "net.deploy.plan.json"])
def test_weights_of_a_model_are_not_written_over(
    pipeline: Callable[[str], Pipeline], model: Path, tmp_path: Path, name: str
) -> None:
    onnx.save(onnx.load(model), model, save_as_external_data=True, location=name)
    before = (tmp_path / name).read_bytes()
    report = run_one(pipeline(PLAN + 'emit = ["json"]'), model, Destination(force=True))
    assert report.error is not None and "weights file" in report.error
    assert (tmp_path / name).read_bytes() == before
