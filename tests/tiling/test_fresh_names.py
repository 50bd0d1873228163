"""Names for what tile writes: free ones, found without a search from the start."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxtile.model.graph_writer import Names

_MODEL = "g (float[2] x) => (float[2] y) { a = Exp(x) a_2 = Exp(a) y = Exp(a_2) }"


def _names() -> Names:
    text = f'<ir_version: 8, opset_import: ["": 17]> {_MODEL}'
    return Names(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_name_gets_the_first_free_number() -> None:
    names = _names()
    assert [names.fresh(wanted) for wanted in ("a", "a", "b", "b", "a_1")] == ["a_1", "a_3", "b", "b_1", "a_1_1"]
    assert names.apart().fresh("b") == "b"


def test_each_further_name_takes_a_few_looks() -> None:
    class CountedSet(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            CountedSet.looks += 1
            return super().__contains__(name)

    names = _names()
    names._taken = CountedSet()
    assert len({names.fresh("tile") for _ in range(1_000)}) == 1_000
    assert CountedSet.looks <= 2_000
