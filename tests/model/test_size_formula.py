"""Formulas of sizes: their normal form, their limits, and comparisons that hold over whole ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.model.formula import SizeFormula, SizePieces, extreme, is_at_least, product_of, read_size, read_sizes

RANGES = {"batch": (1, 8), "seq": (2, 512)}
BATCH, SEQ = SizeFormula.symbol("batch"), SizeFormula.symbol("seq")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2*seq", "2*seq"),
        ("seq*2 + batch - seq", "batch + seq"),
        ("floor(seq/2) + 1", "((seq) // 2) + 1"),
        ("floor(seq/2 + 1/2)", "((seq + 1) // 2)"),
        ("(4*seq + 2) // 2", "2*seq + 1"),
        ("(8*seq + 63) // 64", "((seq + 7) // 8)"),
        ("ceiling(seq/3)", "((seq + 2) // 3)"),
        ("seq**2", "seq**2"),
        ("Min(64, seq)", "min(64, seq)"),
        ("Min(600, seq)", "seq"),
        ("Max(0, seq - 1)", "seq - 1"),
        ("(2*seq + 4)/2", "seq + 2"),
        ("64", "64"),
    ],
)
def test_sizes_have_one_normal_form(text: str, written: str) -> None:
    found = read_size(text, RANGES)
    assert found is not None
    assert str(found) == written


@pytest.mark.parametrize("text", ["other", "seq +", "seq/2", "f(seq)", "seq**-1", "2//0", "seq**99", None])
def test_other_texts_are_no_sizes(text: str | None) -> None:
    assert read_size(text, RANGES) is None
    assert read_sizes((2, text), RANGES) is None


def test_limits_of_a_polynomial_that_grows_are_reached() -> None:
    formula = BATCH * SEQ * SEQ * 4 + 64
    assert formula.limits(RANGES) == (1 * 4 * 4 + 64, 8 * 512 * 512 * 4 + 64)
    assert formula.at({"batch": 2, "seq": 3}) == 136


def test_the_largest_is_found_where_it_is_so_at_all_sizes() -> None:
    assert is_at_least(SEQ * SEQ, SEQ * 2, RANGES), "seq is at least 2"
    assert not is_at_least(SEQ * SEQ, SEQ * 3, RANGES), "seq may be 2"
    assert is_at_least(SEQ * 64, (SEQ // 2) * 128, RANGES)
    assert not is_at_least((SEQ // 2) * 128, SEQ * 64, RANGES)
    assert extreme("max", [SEQ, BATCH * SEQ], RANGES) == BATCH * SEQ


sizes = st.recursive(
    st.sampled_from([BATCH, SEQ, SizeFormula.number(3), SizeFormula.number(64)]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, n: a // n, inner, st.integers(1, 9)),
        st.builds(lambda a, b: extreme("min", [a, b], RANGES), inner, inner),
    ),
    max_leaves=5,
)
points = st.fixed_dictionaries({"batch": st.integers(1, 8), "seq": st.integers(2, 512)})


@given(sizes, sizes, points)
def test_what_is_said_of_a_range_holds_at_each_of_its_sizes(a: SizeFormula, b: SizeFormula, at: dict[str, int]) -> None:
    assert eval(str(a), {"min": min, "max": max}, at) == a.at(at)
    low, high = a.limits(RANGES)
    assert low <= a.at(at) <= high
    assert (a + b).at(at) == a.at(at) + b.at(at)
    assert product_of([a, b, 2]).at(at) == 2 * a.at(at) * b.at(at)
    assert (a - b).at(at) == a.at(at) - b.at(at)
    if is_at_least(a, b, RANGES):
        assert a.at(at) >= b.at(at)
    assert SizePieces.of([a, b]).at(at) == max(a.at(at), b.at(at))
    assert read_size(str(a), RANGES) is None or read_size(str(a), RANGES).at(at) == a.at(at)  # type: ignore[union-attr]


def test_a_size_is_divided_by_a_number_of_at_least_1() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SEQ // 0
