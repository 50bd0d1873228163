"""Pattern files that are wrong: each error names the file and the line at fault."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import from_file
from onnxtile.model.load import load
from onnxtile.system.errors import PatternError, QueryError

HEAD = 'name = "Mine"\ndoc = "x"\n'
MODEL = """<ir_version: 10, opset_import: ["": 17]> g (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {
    a = Relu(x) b = Mul(a, z) y = Tanh(b) }"""

CASES: dict[str, tuple[str, int, str]] = {
    "a value is missing": (HEAD + "after =\n", 3, "invalid value"),
    "a string is not closed": ('name = "Mine\ndoc = "x"\n', 1, "illegal character"),
    "three quotes are not closed": (HEAD + "[[variants]]\nquery = '''\nMul->Relu\n", 5, "expected"),
    "a key twice": (HEAD + 'doc = "y"\n', 3, "cannot overwrite"),
    "unknown field": (HEAD + 'speed = 3\n[[variants]]\nquery = "Mul->Relu"\n', 3, "unknown key 'speed'"),
    "unknown field of the second variant": (
        HEAD
        + '\n[[variants]]\nquery = "Mul->Relu"\n\n# a comment\n[[variants]]\nquery = """\nMul->Tanh"""\n\nquary = 3\n',
        12,
        "unknown key 'variants.1.quary'",
    ),
    "no name": ('doc = "x"\n[[variants]]\nquery = "Mul->Relu"\n', 1, "'name' is missing"),
    "a variant without a query": (HEAD + '[[variants]]\nquery = "Mul->Relu"\n\n[[variants]]\nnote = "n"\n', 6, "query"),
    "a name that is none": ('doc = "x"\nname = "My Op"\n[[variants]]\nquery = "Mul->Relu"\n', 2, "'name'"),
    "a number for a query": (HEAD + "\n[[variants]]\nnote = 'n'\nquery = 3\n", 6, "query"),
    "no variants": (HEAD, 1, "'variants' is missing"),
    "bad syntax in a query": (HEAD + '[[variants]]\nquery = "Mul->"\n', 4, "the query ends here"),
    "bad syntax on the third line of a query": (
        HEAD + "[[variants]]\nnote = 'n'\nquery = '''\nMul->Tanh;\nMul->->Relu'''\n",
        7,
        "cannot stand here",
    ),
    "bad syntax in a condition": (
        HEAD + '[[variants]]\nquery = "Mul#a->Tanh#b"\nwhere = [\n  "a.axis == b.axis",\n  "a.axis == ",\n]\n',
        7,
        "the query ends here",
    ),
    "an operator that is none": (HEAD + "[[variants]]\nquery = '''\nMul->Tann'''\n", 5, "no operator is called 'Tann'"),
    "an attribute that is none": (HEAD + '[[variants]]\nquery = "Tanh[axis == 1]"\n', 4, "Tanh has no 'axis'"),
    "a clause on its own": (HEAD + '[[variants]]\nquery = "Mul->Tanh;Relu->Mul"\n', 4, "not connected"),
    "everything": (HEAD + '[[variants]]\nquery = "."\n', 4, "matches everything"),
    "everything there is": (HEAD + '[[variants]]\nquery = ".#1(-*>.)*;.#1~>$"\n', 4, ""),
    "a chain of anything": (HEAD + '[[variants]]\nquery = ".->(.|.~>.)"\n', 4, "matches everything"),
    "500 blocks deep": (HEAD + f"[[variants]]\nquery = '{'(' * 500}Mul->Tanh{')' * 500}'\n", 4, "nested deeper"),
    "a test 5,000 deep": (HEAD + f"[[variants]]\nquery = 'Mul[{'not ' * 4000}true]->Tanh'\n", 4, "nested too deeply"),
    "a million times": (HEAD + "[[variants]]\nquery = '(((Mul->Tanh){999999999}){999}){999}'\n", 4, ""),
    "arrays 5,000 deep": (HEAD + f"after = {'[' * 5000}{']' * 5000}\n", 1, "nested too deeply"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_file_and_line(tmp_path: Path, case: str) -> None:
    text, line, words = CASES[case]
    file = tmp_path / "mine.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(PatternError) as caught:
        api.fuse(onnx.parser.parse_model(MODEL), [str(file)], verify=False)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"{file}:{line}: "), first
    assert words in first
    shown = re.match(r"line (\d+): ", rest[0]) if rest else None
    assert shown is None or int(shown[1]) == line  # the line above the caret is numbered as in the file


def test_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b'name = "Mine"\ndoc = "\xff"\n')
    with pytest.raises(PatternError, match=r"mine\.toml:2: this is not UTF-8"):
        api.fuse(onnx.parser.parse_model(MODEL), [str(file)], verify=False)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(HEAD + '[[variants]]\nquery = "Mul->Tanh"\n')
    second.write_text('\ndoc = "y"\nname = "Mine"\n[[variants]]\nquery = "Relu->Mul"\n')
    with pytest.raises(PatternError) as caught:
        api.fuse(onnx.parser.parse_model(MODEL), [str(first), str(second)], verify=False)
    assert str(caught.value) == f"{second}:3: the name 'Mine' is taken: {first}:1 gives it as well"
    # The same file twice is one pattern.
    assert api.fuse(onnx.parser.parse_model(MODEL), [str(first), str(first)], verify=False).fused == 1


def test_a_query_of_the_command_line_matches_everything() -> None:
    with pytest.raises(QueryError, match="matches everything"):
        api.fuse(onnx.parser.parse_model(MODEL), [".~>."], verify=False)


@pytest.fixture(name="chain", scope="module")
def _chain() -> ir.Model:
    """Return 100,000 Relu, one after the other."""
    nodes: list[ir.Node] = []
    first = value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((2,)))
    for i in range(100_000):
        nodes.append(ir.Node("", "Relu", [value], outputs=[ir.Value(name=f"v{i}")], name=f"n{i}"))
        value = nodes[-1].outputs[0]
    return ir.Model(ir.Graph([first], [value], nodes=nodes, opset_imports={"": 17}, name="chain"), ir_version=10)


@pytest.mark.parametrize("query", ["Relu->Relu*", "(Relu->Relu)+", "Relu#1+;Relu#1->$", "Relu#1->.*;Relu#1<-$"])
def test_a_match_of_100_000_nodes_is_refused(tmp_path: Path, chain: ir.Model, query: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"{HEAD}[[variants]]\nquery = '{query}'\n")
    with pytest.raises(PatternError) as caught:
        fuse(chain, [from_file(file)])
    assert str(caught.value).startswith(f"{file}:4: variant 1: a match has more than 10,000 nodes")


def test_a_query_that_branches_without_end_takes_a_bounded_number_of_steps(tmp_path: Path) -> None:
    """60 crossings with two ways on each: 2 to the 60 ways to the end, where what the query asks for is not."""
    text, last = "", "x"
    for i in range(60):
        text += f"a{i} = Relu({last}) b{i} = Tanh({last}) c{i} = Add(a{i}, b{i})\n"
        last = f"c{i}"
    head = '<ir_version: 10, opset_import: ["": 17]>'
    model = onnx.parser.parse_model(
        f"{head} g (float[2] x) => (float[2] {last}, float[2] s) {{ {text} s = Softmax(x) }}"
    )
    file = tmp_path / "mine.toml"
    file.write_text(f"{HEAD}[[variants]]\nquery = '''\nRelu~*>(Add | Relu | Tanh)*~*>Softmax'''\n")
    with pytest.raises(PatternError, match=rf"^{re.escape(str(file))}:5: .*too many steps"):
        fuse(load(model), [from_file(file)])
