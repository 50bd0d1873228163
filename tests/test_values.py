"""Values that users write: each kind is read in one place for the command line, pipelines and Python."""

from __future__ import annotations

import pytest

from onnxtile.declare.values import Unreadable, read_shapes


@pytest.mark.parametrize(("said", "meant"), [("1x3x224x224", (1, 3, 224, 224)), ("7", (7,)), ([1, 3], (1, 3))])
def test_a_shape_is_read(said: object, meant: tuple[int, ...]) -> None:
    assert read_shapes({"x": said}) == {"x": meant}


@pytest.mark.parametrize(
    "said", ["", "x", "1x", "x1", "1,2", "-1x2", "1 x 2", "1x2\n", "٣", "0x2", f"{2**63}x2", 3, [0], [True]]
)
def test_a_text_that_is_not_a_shape_is_refused(said: object) -> None:
    with pytest.raises(Unreadable) as error:
        read_shapes({"x": said})
    assert error.value.key == "x"
