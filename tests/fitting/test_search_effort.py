"""The work of a search has a bound that grows with the network, and no capacity takes more."""

from __future__ import annotations

from functools import partial

import onnx
import pytest

import onnxtile
from onnxtile.fitting import search as search_effort
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, PathSearch, PiecesSearch, RegionCuts, SearchEffort, search, search_within
from onnxtile.fitting.strips import Prices
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from tests.bench.large_graphs import wide
from tests.counted import calls
from tests.fitting.networks import inverted_residuals, model
from tests.fitting.test_search import regions


def _read(made: onnx.ModelProto) -> Regions:
    loaded = load(made)
    return Regions(read_network(loaded, resolve(loaded), Constants(loaded)))


def _arena(made: onnx.ModelProto) -> int:
    return onnxtile.plan(made).plan.arena_size


def _blocks(count: int) -> Regions:
    """Return the regions of `count` blocks, each from 2 channels to 8 and back."""
    lines, value = list[str](), "x"
    weights: dict[str, tuple[int, ...]] = {}
    for block in range(count):
        lines += [
            f"a{block} = Conv({value}, w{block})",
            f"b{block} = Conv<kernel_shape=[3,3], pads=[1,1,1,1], group=8>(a{block}, d{block})",
            f"c{block} = Conv(b{block}, p{block})",
        ]
        weights |= {f"w{block}": (8, 2, 1, 1), f"d{block}": (8, 1, 3, 3), f"p{block}": (2, 8, 1, 1)}
        value = f"c{block}"
    text = f"g (float[1,2,32,8] x) => (float[1,2,32,8] {value}) {{ {' '.join(lines)} }}"
    return _read(model(text, **weights))


@pytest.mark.parametrize("way", [PathSearch, PiecesSearch])
def test_a_search_ends_where_its_effort_does_not_suffice(
    monkeypatch: pytest.MonkeyPatch, way: type[PathSearch | PiecesSearch]
) -> None:
    free, bound = _blocks(12), _blocks(12)
    capacity = max(one.peak for one in free.whole) // 2
    way(RegionCuts(free, capacity, recomputes=False), Prices(1e6)).schedule()
    monkeypatch.setattr(search_effort, "_BASE", 0)
    monkeypatch.setattr(search_effort, "_KERNELS", 0)
    way(RegionCuts(bound, capacity, recomputes=False), Prices(1e6)).schedule()
    assert bound.counted == 0 < free.counted


def test_a_place_has_what_places_before_it_left() -> None:
    about = regions()
    effort = SearchEffort(about, 10)
    first = effort.next_share() - about.counted
    second = effort.next_share() - about.counted
    assert first < second
    about.counted += 10**9
    assert effort.next_share() == about.counted, "nothing is tried where no effort is left"


def test_later_searches_take_less_and_some() -> None:
    about = regions()
    first = SearchEffort(about, 1).next_share() - about.counted
    about.counted += first // 4
    second = SearchEffort(about, 1).next_share() - about.counted
    about.counted += 10**9
    third = SearchEffort(about, 1).next_share() - about.counted
    assert first > second > third > 1


def test_the_work_grows_with_the_blocks_of_a_network() -> None:
    small, large = _blocks(8), _blocks(32)
    for about in (small, large):
        capacity = max(one.peak for one in about.whole) * 2 // 3
        assert search(about, FitTarget(capacity, 0.0)).peak <= capacity
    assert large.counted < 6 * small.counted


def test_the_work_of_a_large_network_is_a_little_for_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("_LARGE", 0), ("_FULL", 12), ("_FEWER", 8)):
        monkeypatch.setattr(search_effort, name, number)

    def counted(blocks: int) -> int:
        """Return the kernels counted for a network of so many blocks where nothing fits."""
        about = _blocks(blocks)
        search(about, FitTarget(64, 0.0))
        assert about.is_cut_short
        return about.counted

    small, large = counted(16), counted(64)
    assert small < large < 6 * small


def test_networks_of_up_to_a_thousand_kernels_have_the_work_of_each_kernel_in_full() -> None:
    for kernels in (1, 300, 1000):
        assert search_effort.all_effort(kernels) == 60_000 + 200 * kernels
        assert search_effort.depths(kernels) == (1, 4)
        assert search_effort.attempts(kernels) == 8


def test_the_bound_of_large_networks_is_linear_in_their_kernels() -> None:
    for kernels in (1001, 10_000, 12_000):
        assert search_effort.all_effort(kernels) <= 120 * kernels
        assert search_effort.depths(kernels) == (1,)
    assert search_effort.all_effort(12_000) == 144_000
    assert [search_effort.attempts(kernels) for kernels in (2000, 10_000, 12_000)] == [4, 2, 2]


def test_a_network_that_is_too_large_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search_effort.depths(12_000) and not search_effort.depths(12_001)
    made = inverted_residuals()
    read = _read(made)
    monkeypatch.setattr(search_effort, "_LARGEST", len(read.network.kernels) - 1)
    for target in (FitTarget(64, 0.0), FitTarget(None, 0.0)):
        assert search(read, target).is_whole
        assert read.is_cut_short
    assert read.counted == 0
    arena = _arena(made)
    assert onnxtile.fit(made, capacity=arena).fits
    with pytest.raises(Infeasible, match=f"reached is {arena:,} bytes.*; the bound of the search ended it"):
        onnxtile.fit(made, capacity=arena - 64, verify=False)
    with pytest.raises(Infeasible, match="too many for a search"):
        onnxtile.fit(made, smallest=True)


def test_items_of_a_batch_run_one_by_one_where_their_nodes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wide(50)
    peak = _arena(made)
    apart = onnxtile.fit(made, capacity=peak * 2 // 3)
    assert apart.steps[0].kind == "batch"
    monkeypatch.setattr("onnxtile.fitting.rewrites.sink_concats._NODES", 4 * len(made.graph.node) - 1)
    assert onnxtile.fit(made, capacity=peak * 2 // 3).steps[0].kind != "batch"


def test_items_of_a_batch_that_are_too_many_for_a_search_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wide(50)
    monkeypatch.setattr(search_effort, "_LARGEST", len(made.graph.node))
    found = onnxtile.fit(made, smallest=True)
    assert [step.kind for step in found.steps] == ["batch"]
    assert found.after.arena < _arena(made)
    with pytest.raises(Infeasible, match=f"reached is {found.after.arena:,} bytes.*; the bound of the search ended it"):
        onnxtile.fit(made, capacity=64)


def test_the_ends_of_regions_of_a_wide_network_are_bounded() -> None:
    def counted(size: int) -> int:
        about = _read(wide(size))
        capacity = about.live_sizes[len(about.network.kernels) // 2]
        assert about.whole
        way = PathSearch(RegionCuts(about, capacity, recomputes=False), Prices())
        return calls(way._starts)

    assert counted(1200) < 4.8 * counted(300)


def test_no_better_cut_is_looked_for_where_the_effort_is_used_up() -> None:
    about, other = regions(), regions()
    capacity = 8 * 1024
    free, spent = (RegionCuts(one, capacity, recomputes=True) for one in (about, other))
    spent.most = 0
    assert free.of(0, 12) and spent.of(0, 12)
    assert other.counted < about.counted / 2


def test_where_nothing_fits_a_search_that_its_bound_ends_goes_on_with_more_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enough = _blocks(12)
    capacity = max(one.peak for one in enough.whole) // 2
    wanted = FitTarget(capacity, 0.0)
    assert search_within(enough, wanted) is not None
    monkeypatch.setattr(search_effort, "_BASE", enough.counted // 4)
    monkeypatch.setattr(search_effort, "_KERNELS", 0)
    monkeypatch.setattr(search_effort, "_DEPTHS", (1,))
    one = _blocks(12)
    assert search_within(one, wanted) is None
    assert one.is_cut_short
    monkeypatch.setattr(search_effort, "_DEPTHS", (1, 16))
    deeper = _blocks(12)
    found = search_within(deeper, wanted)
    assert found is not None
    assert found.peak <= capacity


def test_a_search_that_has_tried_all_ways_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def none_within(*arguments: object) -> None:
        tried.append(arguments[-1])  # type: ignore[arg-type]

    monkeypatch.setattr("onnxtile.fitting.search._within", none_within)
    about = _blocks(2)
    assert search_within(about, FitTarget(64, 0.0)) is None
    assert tried == [1]
    assert not about.is_cut_short


def test_the_verdict_says_whether_the_bound_ended_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = partial(onnxtile.fit, inverted_residuals(), capacity=3 * 1024, max_extra_macs="0%", verify=False)
    with pytest.raises(Infeasible) as full:
        fit()
    assert "bound" not in str(full.value)
    monkeypatch.setattr(search_effort, "_BASE", 8)
    monkeypatch.setattr(search_effort, "_KERNELS", 0)
    with pytest.raises(Infeasible, match="the bound of the search ended it"):
        fit()


def test_a_result_says_that_further_capacities_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_effort, "_ATTEMPTS", (1, 1))
    with pytest.raises(Infeasible, match="the bound of the search ended it"):
        onnxtile.fit(inverted_residuals(), capacity=10240, wrap=True, exact=True)
