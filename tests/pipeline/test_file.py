"""Pipeline files: what they may say, and what bad ones get."""

from dataclasses import replace
from pathlib import Path

import pytest

from onnxtile.pipeline.file import Pipeline, from_file, verbs
from onnxtile.system.errors import UsageError

GOOD = """
doc = "what it is for"
output = "{name}.small.onnx"

[[steps]]
do = "fuse"
patterns = ["LayerNorm"]
lower = "onnx"

[[steps]]
do = "tile"
max = [64, "256KiB"]
shapes = {x = "1x3x8x8", y = [2, 4]}

[[steps]]
do = "plan"
dims = {batch = 8}
emit = ["json"]

[budgets]
max_arena = "1MiB"
min_fused = {LayerNorm = 2}
"""


def read(folder: Path, text: str) -> Pipeline:
    path = folder / "p.toml"
    path.write_text(text)
    return from_file(path)


def test_a_file_says_steps_options_and_budgets(tmp_path: Path) -> None:
    pipeline = read(tmp_path, GOOD)
    assert [step.name for step in pipeline.steps] == ["fuse", "tile", "plan"]
    fuse, tile, plan = (vars(step.options) for step in pipeline.steps)
    assert (fuse["patterns"], fuse["lower"], fuse["verify"]) == (("LayerNorm",), "onnx", True)
    assert (tile["max"].every, tile["max"].memory) == (64, 2**18)
    assert tile["shapes"] == {"x": (1, 3, 8, 8), "y": (2, 4)}
    assert plan["dims"] == {"batch": 8}
    assert (pipeline.name, pipeline.output) == ("p", "{name}.small.onnx")
    assert (pipeline.budgets.max_arena, pipeline.budgets.min_fused) == (2**20, {"LayerNorm": 2})


def test_a_model_has_the_budgets_of_all_and_those_of_the_patterns_that_its_name_matches(tmp_path: Path) -> None:
    text = """
        [budgets.models."wide*.onnx"]
        max_arena = "2MiB"
        max_nodes = 9
        [budgets.models."wide-2.onnx"]
        max_arena = "3MiB"
    """
    budgets = read(tmp_path, GOOD + text).budgets
    given = {"max_arena": 2**20, "min_fused": {"LayerNorm": 2}}
    assert budgets.budgets_of(Path("a/net.onnx")).model_dump(exclude_unset=True) == given
    wide = {**given, "max_arena": 2**21, "max_nodes": 9}
    assert budgets.budgets_of(Path("a/wide.onnx")).model_dump(exclude_unset=True) == wide
    assert budgets.budgets_of(Path("wide-2.onnx")).model_dump(exclude_unset=True) == {**wide, "max_arena": 3 * 2**20}


def test_a_model_has_the_options_of_all_and_those_of_the_patterns_that_its_name_matches(tmp_path: Path) -> None:
    text = """
        [steps.models."wide*.onnx"]
        dims = {batch = 2, seq = 4}
        order = "any"
        [steps.models."wide-2.onnx"]
        dims = {}
        layout = "layout.toml"
    """
    (tmp_path / "layout.toml").write_text('workspaces = {Conv = "8"}')
    step = read(tmp_path, '[[steps]]\ndo = "plan"\nruns = "9s"\n' + text).steps[0]
    assert step.step_for(Path("a/net.onnx")).options == step.options
    wide, narrow = (step.step_for(Path(name)).options for name in ("a/wide.onnx", "wide-2.onnx"))
    assert wide == replace(step.options, dims={"batch": 2, "seq": 4}, order="any")
    assert narrow == replace(wide, dims={}, layout=narrow.layout)
    assert narrow.layout != wide.layout


def test_the_output_is_named_after_the_file(tmp_path: Path) -> None:
    assert read(tmp_path, '[[steps]]\ndo = "unfuse"').output == "{name}.p.onnx"


def test_models_are_found_from_the_folder_of_the_file(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.onnx"):
        (tmp_path / name).touch()
    pipeline = read(tmp_path, 'models = ["*.onnx"]\n[[steps]]\ndo = "unfuse"')
    assert pipeline.models == (tmp_path / "a.onnx", tmp_path / "b.onnx")


@pytest.mark.parametrize("name", verbs())
def test_every_step_takes_no_option_that_it_does_not_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"p\.toml:3: unknown key 'nothing_like_it'"):
        read(tmp_path, f'[[steps]]\ndo = "{name}"\nnothing_like_it = 1\n')


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[[steps]]\ndo = ", 2, "invalid value"),
        ("", 1, "'steps' is missing"),
        ("steps = []", 1, "at least 1 item"),
        ('stpes = []\n[[steps]]\ndo = "fuse"', 1, "unknown key 'stpes'"),
        ('[[steps]]\npatterns = ["x"]', 1, "a step names its verb"),
        ('\n[[steps]]\ndo = "fusee"', 3, 'invalid do = "fusee"'),
        ("\n[[steps]]\ndo = {}", 3, "a step names its verb"),
        ("[[steps]]\ndo = [1]", 2, "a step names its verb"),
        ('models = [""]\n[[steps]]\ndo = "fuse"', 1, "'' names no file"),
        ('models = ["a\\u0000b"]\n[[steps]]\ndo = "fuse"', 1, "names no file"),
        ('output = "{name}\\u0000.onnx"\n[[steps]]\ndo = "fuse"', 1, "a file's name"),
        ('[[steps]]\ndo = "plan"\nemit = ["a\\u0000.json"]', 3, "emit"),
        ('[[steps]]\ndo = "inspect"\nemit = ["a\\u0000.json"]', 3, "emit"),
        ('[[steps]]\ndo = "verify"\ninputs = "a\\u0000.npz"', 3, "is not a valid path"),
        (f'[[steps]]\ndo = "tile"\nmax = {"9" * 5000}', 3, "too many digits"),
        (f'[[steps]]\ndo = "plan"\nshapes = {{x = "{"9" * 5000}x1"}}', 3, "not a shape"),
        (f'[[steps]]\ndo = "plan"\nsearch = "{"9" * 5000}"', 3, "invalid search = "),
        (f'[[steps]]\ndo = "plan"\nsearch = "{"9" * 5000}s"', 3, "invalid search = "),
        ('[[steps]]\ndo = "verify"\ninputs = {x = [-1e308, 1e308]}', 3, "too wide"),
        (f'[[steps]]\ndo = "verify"\nruns = {"9" * 20}', 3, "from 1 to 1,000,000"),
        ('[[steps]]\ndo = "fuse"\nlower = "torch"', 3, 'invalid lower = "torch"'),
        ('[[steps]]\ndo = "fuse"\npatterns = ["NoSuchPattern"]', 3, "NoSuchPattern"),
        ('[[steps]]\ndo = "tile"', 1, ""),
        ('[[steps]]\ndo = "tile"\nmax = 0', 3, "invalid max = 0: give a whole number of at least 1"),
        ('[[steps]]\ndo = "tile"\nmax = "64x"', 3, 'invalid max = "64x": this is not a bound'),
        ('[[steps]]\ndo = "tile"\nmax = "lots"', 3, "this is not a bound of a tile"),
        ('[[steps]]\ndo = "tile"\nmax = 8\nshapes = {x = "1xyx3"}', 4, 'invalid shapes.x = "1xyx3"'),
        ('[[steps]]\ndo = "plan"\nemit = ["docx"]', 3, "docx"),
        ('[[steps]]\ndo = "fuse"\n[budgets]\nmax_arena = 5', 4, "needs a step plan"),
        ('[[steps]]\ndo = "plan"\n[budgets]\nmax_area = 5', 4, "unknown key 'budgets.max_area'"),
        ('[[steps]]\ndo = "fuse"\n[budgets.models."a.onnx"]\nmax_arena = 5', 4, "needs a step plan"),
        ('[[steps]]\ndo = "plan"\n[budgets.models."a.onnx"]\nmax_ram = 5', 4, "needs a step fit or plan that writes C"),
        (
            '[[steps]]\ndo = "plan"\n[budgets.models."a.onnx"]\nmax_area = 5',
            4,
            "unknown key 'budgets.models.a.onnx.max_area'",
        ),
        ('[[steps]]\ndo = "fuse"\n[budgets.models.a]\nmin_fused = {Foo = 1}', 4, "no step fuses 'Foo'"),
        (
            'models = ["*.toml"]\n[[steps]]\ndo = "plan"\n[budgets.models."b.*"]\nmax_arena = 5',
            4,
            "matches none of the models",
        ),
        ('[[steps]]\ndo = "plan"\nmodels = 3', 3, "'models' has a table for each pattern"),
        ('[[steps]]\ndo = "plan"\n[steps.models]\ndims = 3', 3, "'models' has a table for each pattern"),
        ('[[steps]]\ndo = "plan"\n[steps.models.a]\n\ndimz = {}', 5, "unknown key 'dimz'"),
        ('[[steps]]\ndo = "plan"\n[steps.models.a]\nemit = ["json"]', 4, "'emit' is the same for all models"),
        ('[[steps]]\ndo = "plan"\n[steps.models.a]\ndo = "fuse"', 4, "'do' is the same for all models"),
        ('[[steps]]\ndo = "tile"\nmax = 8\n[steps.models.a]\nmax = 0', 5, "invalid max = 0"),
        (
            'models = ["*.toml"]\n[[steps]]\ndo = "plan"\n[steps.models."b.*"]\nruns = "9s"',
            4,
            "matches none of the models",
        ),
        ('output = "x.onnx"\n[[steps]]\ndo = "fuse"', 1, "{name}"),
        ('models = ["none*.onnx"]\n[[steps]]\ndo = "fuse"', 1, "names no file"),
    ],
)
def test_bad_files_get_the_line_and_what_is_wrong(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'p.toml'}:{line}: ")
    assert message in str(caught.value)


def test_a_step_that_is_not_there_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, '[[steps]]\ndo = "fuze"')
    assert caught.value.hint == "did you mean 'fuse'?"
