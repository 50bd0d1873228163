"""Tiny graphs for the pattern library, and the count of what was found in a model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.fusion.fuse import PatternResult
from onnxtile.fusion.pattern import Pattern, pattern_set

LIBRARY = {pattern.name: pattern for pattern in pattern_set()}
ZOO = Path(__file__).parents[3] / "shared" / "zoo"
TWINS = (
    *("bert_dy20", "bert_ts14", "bert_ts14dyn", "bert_ts14dyn_sim", "bert-sdpa_dy20", "clip_text_ts14", "dinov2_dy20"),
    *("dinov2_ts14", "dinov2div_ts14", "gpt2_ts14", "gpt2_ts14dyn", "gpt2_dy20", "gpt2-sdpa_ts14", "gpt2_ts14dyn_sim"),
    *("llama_dy20", "llama_ts14", "llama_ts14dyn", "llama_ts14dyn_sim", "llama-sdpa_ts14", "qwen3_dy20", "vit_ts14"),
    *("vit_dy20", "llama_ts14_sim", "t5_encoder_ts14"),
)
"""Models of the zoo that --slow tries: another export of the same network, and another network of the same exporter, are quick."""

_NUMBER = re.compile(r"(?<![\w.\[-])-?\d+\.\d+(?:e-?\d+)?")
_INTEGERS = re.compile(r"(?<=[(,])\s*\[([-\d, ]*)\]")
_WEIGHT = re.compile(r"\bW(?:_\d+)+\b")
_COMMUTATIVE = {"Add", "Mul"}
_LINE = re.compile(r"(?P<outputs>[\w, ]+?)\s*=\s*(?P<op>\w+)\s*(?P<attributes><.*?>)?\s*\((?P<inputs>.*)\)\s*$")


class Tiny:
    """Makes tiny models, and fuses them with the library."""

    patterns = LIBRARY

    @staticmethod
    def model(body: str, *, shape: str = "2,6,8", dtype: str = "float", opset: int = 17) -> onnx.ModelProto:
        """Return the model of `body`, lines of ONNX text.

        In them `2.0` is a constant of the graph's element type, `[1, 2]` one of int64, `W_3_4` a random constant of shape 3×4 (`W_8_1_1`
        and so on). `x`, and what else is read and not made, are inputs of `shape`. The last line makes the output.
        """
        constants: dict[str, np.ndarray] = {}
        kind = {"float": np.float32, "float16": np.float16}[dtype]

        def number(found: re.Match[str]) -> str:
            return _constant(constants, np.asarray(float(found[0]), kind))

        def integers(found: re.Match[str]) -> str:
            return _constant(constants, np.asarray([int(i) for i in found[1].split(",") if i.strip()], np.int64))

        def weight(found: re.Match[str]) -> str:
            dims = [int(part) for part in found[0].split("_")[1:]]
            values = np.random.default_rng(len(constants)).uniform(0.2, 1, dims)
            return _constant(constants, values.astype(kind))

        lines = []
        for line in filter(None, map(str.strip, body.strip().splitlines())):
            parts = _LINE.match(line)
            assert parts is not None, line
            inputs = _WEIGHT.sub(weight, _NUMBER.sub(number, _INTEGERS.sub(integers, f"({parts['inputs']})")))
            lines.append(f"{parts['outputs']} = {parts['op']} {parts['attributes'] or ''} {inputs}")
        made = {name.strip() for line in lines for name in line.split("=")[0].split(",")}
        read = dict.fromkeys(
            name.strip() for line in lines for name in line[line.rindex("(") + 1 : -1].split(",") if name.strip()
        )
        inputs = ", ".join(f"{dtype}[{shape}] {name}" for name in read if name not in made and name not in constants)
        last = lines[-1].split("=")[0].split(",")[0].strip()
        head = f'<ir_version: 8, opset_import: ["": {opset}]>'
        text = f"{head} g ({inputs}) => ({dtype}[] {last}) {{ {' '.join(lines)} }}"
        model = onnx.parser.parse_model(text)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    @staticmethod
    def turned(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
        """Yield `model` as it is, with the operands of each second Add or Mul exchanged, from the first or the second on, and of all."""
        places = [i for i, node in enumerate(model.graph.node) if node.op_type in _COMMUTATIVE]
        for chosen in ([], places[::2], places[1::2], places):
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            for place in chosen:
                operands = list(copy.graph.node[place].input)
                copy.graph.node[place].ClearField("input")
                copy.graph.node[place].input.extend(reversed(operands))
            yield copy

    @staticmethod
    def before(pattern: Pattern) -> list[Pattern]:
        """Return the patterns of the library that `pattern` needs, and those that they need, in order."""
        needed, todo = set[str](), [pattern]
        while todo:
            names = (todo.pop().needs() & LIBRARY.keys()) - needed - {pattern.name}
            needed |= names
            todo += [LIBRARY[name] for name in names]
        return [other for name, other in LIBRARY.items() if name in needed]

    @staticmethod
    def fused(model: onnx.ModelProto) -> Counter[str]:
        """Fuse `model` with the whole library, verify it, and return how many meta-ops of each kind were made."""
        return made(api.fuse(model).patterns)


def _constant(constants: dict[str, np.ndarray], array: np.ndarray) -> str:
    name = f"k{len(constants)}"
    constants[name] = array
    return name


def made(results: tuple[PatternResult, ...]) -> Counter[str]:
    """Return how many meta-ops of each kind there are."""
    return Counter({result.name: len(result.calls) for result in results if result.calls})


def found(model: ir.Model) -> dict[str, int]:
    """Return how many of each computation `model` holds, as operators and inside meta-ops."""
    inside: dict[object, Counter[str]] = {}

    def count(nodes: Iterator[ir.Node]) -> Counter[str]:
        total: Counter[str] = Counter()
        for node in nodes:
            tanh = node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "tanh"
            total["GeLUTanh" if tanh else node.op_type.partition(".")[0]] += 1
            function = model.functions.get(node.op_identifier())
            if function is not None:
                if node.op_identifier() not in inside:
                    inside[node.op_identifier()] = count(function.all_nodes())
                total += inside[node.op_identifier()]
        return total

    total = count(model.graph.all_nodes())
    return {name: sum(total[op] for op in ops) for name, ops in _COUNTED.items()}


_COUNTED = {
    "layernorm": ("LayerNorm", "LayerNormalization"),
    "rmsnorm": ("RMSNorm", "RMSNormalization", "SimplifiedLayerNormalization"),
    "erf": ("GeLU", "Gelu"),
    "tanh": ("GeLUTanh",),
    "quick": ("QuickGeLU",),
    "silu": ("SiLU", "Swish"),
    "attention": ("ScaledDotProductAttention", "Attention"),
}


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    """Return the maker of tiny models."""
    return Tiny()


@pytest.fixture(scope="session", name="found")
def _found() -> object:
    """Return the count of computations in a model."""
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `variant` for each variant of each file, one that takes `truth` for each model of the zoo."""
    if "variant" in metafunc.fixturenames:
        variants = [(name, i) for name, pattern in LIBRARY.items() for i in range(len(pattern.programs))]
        metafunc.parametrize("variant", variants, ids=[f"{name}-{i + 1}" for name, i in variants])
    if "truth" in metafunc.fixturenames:
        path = ZOO / "truth.json"
        skip = pytest.mark.skip(reason="the zoo is not beside this checkout")
        if not path.exists():
            metafunc.parametrize("truth", [pytest.param(None, marks=skip, id="zoo")])
            return
        truths = json.loads(path.read_text("utf-8")).items()
        cases = [pytest.param(one, marks=pytest.mark.slow if one[0] in TWINS else (), id=one[0]) for one in truths]
        metafunc.parametrize("truth", cases)
