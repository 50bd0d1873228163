"""The search of fit: its costs are those of the operations that are written, and its work has a bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import onnx
import pytest

import onnxtile
from models.make_mobilenet_v2 import mobilenet_v2
from onnxtile.fitting import search as search_effort
from onnxtile.fitting.live_bytes import Overload, live_bytes, uncut_loads
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import (
    ChunkLoad,
    Descent,
    FitTarget,
    PathSearch,
    PiecesSearch,
    RegionCuts,
    SearchEffort,
    _priced,
    _within,
    all_effort,
)
from onnxtile.fitting.strips import Cut, FitSchedule, Prices, RegionCost, paced, shares
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning.offsets.effort import SearchBudget
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.system.long_work import Progress, silent
from onnxtile.verbs.flows.fit import fit
from onnxtile.verbs.flows.fit_drafts import is_in_proportion, regions_of
from onnxtile.verbs.flows.plan import plan
from tests.bench.large_graphs import wide
from tests.counted import calls
from tests.fitting.networks import copied_bytes, inverted_residuals, model, search, search_within

# The costs that the search counts are those of the operations that are written.


def regions(rows: int = 65) -> Regions:
    """Return the regions of a small network of inverted residuals."""
    made = load(inverted_residuals(rows))
    return regions_of(made, resolve(made, run=True), Constants(made))


@pytest.mark.parametrize("step", [1, 2, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("chunks", [(), ((1, 3),), ((1, 8), (6, 5)), ((1, 12), (6, 16))])
@pytest.mark.parametrize("again", [False, True])
def test_costs_counted_by_kinds_of_strips_are_those_of_all_strips(
    step: int, chunks: tuple[tuple[int, int], ...], again: bool
) -> None:
    about = regions()
    recomputed = about.from_narrower(0, about.network.kernels[2].makes[0]) if again else frozenset()
    cost = about.cost(0, 12, Cut(step, recomputed=frozenset(recomputed), chunks=chunks))
    assert cost is not None
    region, trace = about.cut(cost), about.trace(cost)
    live = live_bytes(trace, region.kernels, region.tensors, ())
    copied = copied_bytes(trace, live)
    assert (cost.peak, cost.nodes, cost.copied, cost.macs) == (live.peak, len(trace.ops), copied, trace.macs)


def test_chunks_of_one_group_change_the_bytes_of_no_other_kernel() -> None:
    about = regions()
    cut = Cut(4, recomputed=about.wide(0, 12))
    one, other = (about.cost(0, 12, replace(cut, chunks=chunks)) for chunks in [((1, 3),), ((1, 3), (6, 8))])
    assert one is not None and other is not None
    inside = set(about.groups[6].places)
    assert all(one.loads[place] == other.loads[place] for place in range(12) if place not in inside)
    assert max(other.loads[place] for place in inside) < max(one.loads[place] for place in inside)
    assert other.peak == max(other.loads)


def test_rows_are_kept_again_where_they_fit() -> None:
    about = regions()
    again = about.cost(0, 12, Cut(8, recomputed=about.wide(0, 12)))
    assert again is not None and again.macs > about.network.macs
    found = RegionCuts(about, 2 * again.peak, recomputes=True)._fewer_recomputed(again)
    assert found.macs <= about.network.macs and not found.cut.recomputed


def test_rows_of_one_tensor_are_computed_again_where_all_kept_rows_take_too_much() -> None:
    about = Regions(regions().network)
    kept = about.cost(0, 12, Cut(8))
    assert kept is not None
    found = RegionCuts(about, kept.peak - 64, recomputes=True)._more_recomputed(0, 12, Cut(8))
    assert found is not None and found.peak < kept.peak
    assert kept.macs < found.macs and found.cut.recomputed < about.wide(0, 12)


def test_the_shortest_strips_are_of_one_row_of_the_result() -> None:
    about = Regions(regions().network)
    rows, results = about.rows(0, 12), about.network.tensors[about.results(0, 12)[0]].rows
    assert rows % results, "longer and shorter strips differ by the rounding"
    shortest = about.cost(0, 12, Cut(rows // results))
    assert shortest is not None
    ways = RegionCuts(about, shortest.peak, recomputes=False).costs_of(0, 12)
    assert any(way.cut.step == rows // results for way in ways)


def test_no_way_to_cut_a_region_is_dearer_than_another_in_each_respect() -> None:
    ways = RegionCuts(regions(), 8 * 1024, recomputes=True).costs_of(0, 12)
    assert ways
    for one in ways:
        assert one.peak <= 8 * 1024
        others = [other for other in ways if other is not one]
        assert not any(o.macs <= one.macs and o.nodes <= one.nodes and o.copied <= one.copied for o in others)


def test_more_rows_at_a_time_are_computed_again_less_often() -> None:
    about = regions(129)
    narrow = about.network.kernels[5].makes[0]
    cut = Cut(4, eager=frozenset({narrow}), recomputed=about.wide(0, 12))
    fine, coarse = (about.cost(0, 12, one) for one in [cut, replace(cut, grains=((narrow, 4),), chunks=((1, 3),))])
    assert fine is not None and coarse is not None
    assert coarse.macs < fine.macs
    region, trace = about.cut(coarse), about.trace(coarse)
    live = live_bytes(trace, region.kernels, region.tensors, ())
    assert (coarse.peak, coarse.nodes, coarse.macs) == (live.peak, len(trace.ops), trace.macs)
    made = {
        patch.rows[1] - patch.rows[0]
        for op in trace.ops
        for patch in map(trace.patches.__getitem__, op.makes)
        if patch.tensor == narrow
    }
    assert 4 in made


def test_kept_rows_cost_no_product_and_rows_computed_again_do() -> None:
    about = regions()
    whole = sum(kernel.macs for kernel in about.network.kernels[:12])
    kept = about.cost(0, 12, Cut(8))
    wide = about.from_narrower(0, about.network.kernels[2].makes[0])
    again = about.cost(0, 12, Cut(8, recomputed=wide))
    assert kept is not None and again is not None
    assert kept.macs <= whole < again.macs


def test_ends_of_regions_from_which_no_way_leads_on_do_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    about = regions()
    count = len(about.network.kernels)
    # Only the last kernel fits as it is, and regions can be cut from the first place alone.
    about.whole = [replace(one, peak=1 if one.stop == count else 2) for one in about.whole]
    about.narrow = list(range(count + 1))
    cuts = RegionCuts(about, 1, recomputes=False)
    tried: list[int] = []

    def ways(start: int, stop: int) -> list[RegionCost]:
        tried.append(stop)
        return [] if start else [RegionCost(start, stop, Cut(1), 1, 0, 2 * (stop - start), 0, 2 * (stop - start))]

    monkeypatch.setattr(cuts, "costs_of", ways)
    monkeypatch.setattr(PathSearch, "_is_worth", lambda _self, start, stop: stop > start)
    found = PathSearch(cuts, Prices()).schedule()
    assert found is not None
    assert [(one.start, one.stop) for one in found.regions] == [(0, count - 1), (count - 1, count)]
    assert set(tried) == {count - 1, count}


def test_no_row_is_computed_again_where_a_schedule_fits_without_that() -> None:
    about = regions()
    kept = search(about, FitTarget(None, 0.0))
    found = search(about, FitTarget(kept.peak, 0.5))
    assert found.peak <= kept.peak
    assert found.macs <= about.network.macs
    least = search(about, FitTarget(None, 0.5))
    assert least.peak < kept.peak
    assert least.macs > about.network.macs


def test_a_budget_of_none_is_kept() -> None:
    about = regions()
    found = search(about, FitTarget(None, 0.0))
    assert found.macs <= about.network.macs


def test_strips_cover_all_rows_once() -> None:
    about = regions()
    kernels, tensors = about.network.kernels[:12], about.network.tensors
    needed = {made: (0, tensors[made].rows) for kernel in kernels for made in kernel.makes}
    for ranges in paced(kernels, tensors, set(needed), needed, 7).values():
        rows = [row for one in ranges if one is not None for row in range(*one)]
        assert rows == list(range(len(rows)))
    assert [one for one in shares(7, 3) if one is not None] == [(0, 2), (2, 4), (4, 7)]


def test_the_bytes_of_whole_kernels_are_those_of_the_network() -> None:
    made = load(inverted_residuals())
    network = read_network(made, resolve(made, run=True), Constants(made))
    assert Regions(network).whole[0].peak == Regions(network).live_sizes[1]


def test_the_smallest_of_a_few_bytes_is_found() -> None:
    """Below 100 bytes, one part in a hundred is less than a byte."""
    text = """<ir_version: 10, opset_import: ["": 17]> g (uint8[2, 4] x) => (uint8[2, 3] y)
      <float s = {0.1}, uint8 z = {3}, int8[4, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float ws = {0.2}, int8 wz = {0}> {
        a = DequantizeLinear(x, s, z)  b = DequantizeLinear(w, ws, wz)  c = MatMul(a, b)  y = QuantizeLinear(c, s, z)
      }"""
    assert fit(onnx.parser.parse_model(text), capacity="smallest", verify=False).after.arena <= 128


def test_a_region_above_the_capacity_is_not_counted_to_the_end() -> None:
    about = regions()
    cut = Cut(4)
    full = regions().cost(0, 12, cut)
    assert full is not None
    for capacity in (1, full.peak // 2, full.peak - 1):
        known = about.cost_within(0, 12, cut, capacity)
        assert isinstance(known, Overload)
        assert capacity < known.peak <= full.peak
        assert all(some <= load for some, load in zip(known.loads, full.loads, strict=True))
        counted = about.counted
        assert about.cost_within(0, 12, cut, min(capacity, known.peak - 1)) is known, "it is not counted again"
        assert about.counted == counted
    assert about.cost_within(0, 12, cut, full.peak) == full
    assert about.cost_within(0, 12, cut, 1) == full, "what is known is returned"


@pytest.mark.parametrize("capacity", [2 * 1024, 4 * 1024, 6 * 1024, 8 * 1024])
def test_a_region_is_given_up_only_where_no_number_of_chunks_helps(capacity: int) -> None:
    about = regions()
    counts = [1, *(count for count in (2, 3, 4, 6, 8, 12, 16) if count <= about.groups[1].channels)]
    for step in (1, 2, 4, 8):
        cut = Cut(step, recomputed=about.wide(0, 12))
        found = RegionCuts(about, capacity, recomputes=True)._fitted(0, 12, cut)
        if found is None:
            all_ways = (
                about.cost(0, 12, replace(cut, chunks=tuple((p, n) for p, n in ((1, one), (6, other)) if n > 1)))
                for one in counts
                for other in counts
            )
            assert all(way is None or way.peak > capacity for way in all_ways)
        else:
            assert found.peak <= capacity


def test_bytes_beyond_all_chunks_are_those_of_a_line_through_two_loads() -> None:
    assert ChunkLoad(2, 700).beyond(ChunkLoad(8, 1000)) == 600
    assert ChunkLoad(1, 650).beyond(ChunkLoad(2, 700)) == 600


def _wide(size: int) -> Regions:
    made = load(wide(size))
    return Regions(read_network(made, resolve(made), Constants(made)))


def test_the_bytes_and_results_of_every_place_are_those_of_the_live_tensors() -> None:
    for about in (regions(), _wide(30)):
        count, last = len(about.network.kernels), about.network.last_reads
        live = [{t for t, maker in about.makers.items() if maker < place <= last[t]} for place in range(count + 1)]
        assert about.live_sizes == [sum(map(about.size, tensors)) for tensors in live]
        assert about.alone == {place: min(tensors) for place, tensors in enumerate(live) if len(tensors) == 1}
        for start in range(count):
            for stop in range(start + 1, count + 1):
                here, there = live[start], live[stop]
                made = {made for kernel in about.network.kernels[start:stop] for made in kernel.makes}
                assert set(about.results(start, stop)) == there & made
                expected = (here, here & there, there - here)
                assert about.bytes_around(start, stop) == tuple(sum(map(about.size, tensors)) for tensors in expected)


def test_the_live_tensors_of_a_wide_network_are_not_listed_at_each_place() -> None:
    small, large = _wide(150), _wide(600)
    assert calls(lambda: (large.narrow, large.alone)) < 4.4 * calls(lambda: (small.narrow, small.alone))
    assert len(large.alone) < len(large.network.kernels)


def test_tensors_that_live_beside_a_kernel_are_not_counted_again_for_each_kernel() -> None:
    small, large = _wide(150), _wide(600)
    assert calls(lambda: large.whole) < 4.4 * calls(lambda: small.whole)


def test_no_schedule_is_searched_below_the_bytes_of_a_kernel_that_is_not_cut() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[1, 4, 32, 32] x) => (float[1, 4, 16, 16] y) <int64 axis = {2}> {
        a = Relu(x)  b = CumSum(a, axis)  c = Sigmoid(b)  y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
      }"""
    made = load(onnx.parser.parse_model(text))
    about = Regions(read_network(made, resolve(made), Constants(made)))
    assert about.least == 2 * 4 * 4 * 32 * 32
    assert search(about, FitTarget(about.least - 1, 0.1)).peak >= about.least
    assert search(about, FitTarget(about.least, 0.1)).peak == about.least


def test_a_kernel_as_it_is_costs_what_a_region_of_it_costs() -> None:
    for about in (regions(), _wide(30)):
        for whole in about.whole:
            counted = about.cost(whole.start, whole.stop, Cut())
            assert counted is not None
            assert counted == whole
            assert (counted.loads, counted.rest) == (whole.loads, whole.rest)


def test_strips_that_are_joined_without_a_copy_need_no_room_for_one() -> None:
    text = """
g (float[1,4,32,32] x) => (float[1,32,32,64] y) {
    [stem] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [wide] b = Conv(a, w1)
    [turned] y = Transpose<perm=[0,2,3,1]>(b)
}"""
    made = model(text, w0=(4, 4, 3, 3), w1=(64, 4, 1, 1))
    fitted = fit(made, capacity="300KiB", budget="0%")
    assert fitted.before.arena == 512 * 1024
    assert 256 * 1024 < fitted.after.arena <= 300 * 1024


def test_a_capacity_out_of_reach_is_refused_with_little_work() -> None:
    made = load(mobilenet_v2(96, width=0.35))
    bind(made, {"batch": 1}, {})
    about = regions_of(made, resolve(made, run=False), Constants(made))
    assert search_within(about, FitTarget(5_000, 0.1)) is None
    assert about.counted == 0
    rough = search(about, FitTarget(5_000, 0.0))
    assert about.counted < all_effort(100) // 2
    assert 5_000 < rough.peak < FitSchedule(tuple(about.whole)).peak


@dataclass
class SlowWay:
    """A search that finds the kernels as they are, in so many further calls."""

    calls: int
    tried: list[int]

    def __call__(self, cuts: RegionCuts, *_: object) -> SlowWay:
        self.tried.append(self.calls)
        self.cuts = cuts
        return self

    def schedule(self) -> FitSchedule:
        first, *others = self.cuts.regions.whole
        return FitSchedule((replace(first, calls=first.calls + self.calls), *others))


@pytest.mark.parametrize(("first", "tried"), [(50_000, [50_000, 700]), (100, [100])])
def test_pieces_are_handed_over_where_whole_tensors_take_much_longer(first: int, tried: list[int]) -> None:
    about = regions()
    ways = SlowWay(first, []), SlowWay(700, [])
    capacity = max(region.peak for region in about.whole)
    ways[1].tried = ways[0].tried
    found = _within(about, capacity, FitTarget(capacity, 0.0), ways, silent, 1)  # type: ignore[arg-type]
    assert ways[0].tried == tried
    assert found is not None
    assert sum(region.calls for region in found.regions) == len(about.whole) + tried[-1]


@dataclass
class PricedWay:
    """A search that saves nodes where these cost more than the products that it does twice."""

    cuts: RegionCuts
    prices: Prices
    progress: Progress
    below: float

    def schedule(self) -> FitSchedule:
        whole = self.cuts.regions.network.macs
        few, many = ((whole * (100 + extra) // 100, nodes) for extra, nodes in [(4, 60), (8, 20)])
        saved = self.prices.macs * 0.04 > self.prices.node * 40
        macs, nodes = few if saved else many
        return FitSchedule((RegionCost(0, len(self.cuts.regions.network.kernels), Cut(1), 0, macs, nodes, 0, nodes),))


@pytest.mark.parametrize(
    ("budget", "nodes", "extra"), [(0.05, None, 4), (0.1, None, 4), (0.1, 30, 8), (0.05, 30, None)]
)
def test_of_what_fits_the_fewest_products_win(budget: float, nodes: int | None, extra: int | None) -> None:
    about = regions()
    cuts = RegionCuts(about, 10_000, recomputes=True)
    found = _priced(cuts, FitTarget(10_000, budget, nodes), PricedWay, 1.0, silent)  # type: ignore[arg-type]
    assert (None if found is None else round(100 * (found.macs / about.network.macs - 1))) == extra


# The work of a search has a bound that grows with the network, and no capacity takes more.


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
    with pytest.raises(Infeasible, match=f"came down to {arena:,} bytes.*; the bound of the search ended it") as ended:
        onnxtile.fit(made, capacity=arena - 64, verify=False)
    assert ended.value.hint == f"give capacity={arena} or try functions='fuse', io='outside'", "no budget helps there"
    with pytest.raises(Infeasible, match="too many for a search"):
        onnxtile.fit(made, capacity="smallest")


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
    found = onnxtile.fit(made, capacity="smallest")
    assert [step.kind for step in found.steps] == ["batch"]
    assert found.after.arena < _arena(made)
    with pytest.raises(
        Infeasible, match=f"came down to {found.after.arena:,} bytes.*; the bound of the search ended it"
    ):
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
    capacity = 6 * 1024
    free, spent = (RegionCuts(one, capacity, recomputes=True) for one in (about, other))
    spent.most = 0
    assert free.costs_of(0, 12) and spent.costs_of(0, 12)
    counted = other.counted
    for cuts in (free, spent):
        for way in cuts.costs_of(0, 12):
            cuts._refine(way)
    assert other.counted == counted < about.counted


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
        tried.append(arguments[5])  # type: ignore[arg-type]

    monkeypatch.setattr("onnxtile.fitting.search._within", none_within)
    about = _blocks(2)
    assert len(Descent(about, FitTarget(None, 0.0)).all_points()) == 1
    assert set(tried) == {1}
    assert not about.is_cut_short


def test_the_verdict_says_whether_the_bound_ended_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = partial(onnxtile.fit, inverted_residuals(9, 8), capacity=700, budget="0%", verify=False)
    with pytest.raises(Infeasible) as full:
        fit()
    assert "bound" not in str(full.value)
    monkeypatch.setattr(search_effort, "_BASE", 8)
    monkeypatch.setattr(search_effort, "_KERNELS", 0)
    with pytest.raises(Infeasible, match="the bound of the search ended it"):
        fit()


def test_where_no_further_point_may_be_tried_the_smallest_arena_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = partial(onnxtile.fit, inverted_residuals(9, 8), functions="wrap", tolerance="exact", verify=False)
    least = fit(capacity="smallest").after.arena
    monkeypatch.setattr(search_effort, "_ATTEMPTS", (1, 1))
    assert fit(capacity=least).fits


# The bytes that live at once while nothing is cut: those of the plan in the order of the file, or fewer.


_VIEWS = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y)
  <int64[2] s = {8, 32}, int64[2] t = {4, 64}> {
    a = Relu(x)  b = Reshape(a, s)  c = Exp(b)  d = Reshape(b, t)  e = Reshape(c, t)  y = Add(d, e)
  }"""
_SIDE = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) {
    a = Relu(x)  b = Exp(a)  c = Add(a, b)  y = Sqrt(c)  z = Relu(b)
  }"""


_GIVEN = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y, float[4, 64] z) {
    v = Identity(x)  y = Identity(v)  a = Relu(y)  b = Exp(a)  z = Relu(b)
  }"""


@pytest.mark.parametrize(
    "model", [inverted_residuals(65), *(onnx.parser.parse_model(text) for text in (_VIEWS, _SIDE, _GIVEN))]
)
def test_it_is_the_peak_of_the_plan_and_no_more_than_that_of_single_kernels(model: onnx.ModelProto) -> None:
    opened = load(model)
    regions: Regions = regions_of(opened, resolve(opened, run=True), Constants(opened), exact=True)
    found = max(uncut_loads(regions.network))
    assert found == plan(model, order="model", verify=False).plan.peak
    assert found <= max(one.peak for one in regions.whole)


def test_a_view_beside_its_source_is_counted_once() -> None:
    opened = load(onnx.parser.parse_model(_VIEWS))
    regions = regions_of(opened, resolve(opened, run=True), Constants(opened), exact=True)
    assert max(uncut_loads(regions.network)) == 2 * 4 * 64 * 4


@pytest.mark.parametrize(("io", "arena"), [("outputs", 128), ("outside", 0)])
def test_a_network_that_only_views_its_input_is_not_cut(io: str, arena: int) -> None:
    """Where the output is outside of the arena, no kernel takes a byte."""
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 8] x) => (float[4, 8] y) { y = Identity(x) }"""
    fitted = fit(onnx.parser.parse_model(text), capacity="smallest", io=io, verify=False)
    assert (fitted.before.arena, fitted.after.arena) == (arena, arena)


# The time of a search may be limited, and what was found until then counts.


def test_a_search_without_time_keeps_what_was_found() -> None:
    about = regions()
    over = SearchBudget(1, seconds=0.0)
    found = search(about, FitTarget(None, 0.1, budget=over))
    assert found.is_whole and about.counted == 0
    whole = found.peak
    way = Descent(about, FitTarget(None, 0.1))
    assert way.is_longer() and way.is_longer()
    assert search(about, FitTarget(None, 0.1)).peak <= way.points[1].peak < whole


def test_the_progress_of_the_least_peak_has_the_bytes_that_are_reached() -> None:
    stages: list[str] = []
    about = regions()
    search(about, FitTarget(None, 0.0), lambda stage, *_: stages.append(stage))
    reached = [int(stage.split()[0].replace(",", "")) for stage in stages if " bytes after " in stage]
    assert len(set(reached)) > 2 and reached == sorted(reached, reverse=True)


def test_a_smaller_peak_is_worth_few_nodes_for_few_bytes() -> None:
    def schedule(peak: int, nodes: int) -> FitSchedule:
        return FitSchedule((RegionCost(0, 1, Cut(1), peak, 0, nodes, 0, nodes),))

    assert is_in_proportion(schedule(1000, 2000), schedule(930, 4000))
    assert not is_in_proportion(schedule(1000, 2000), schedule(940, 4000))
    assert is_in_proportion(schedule(1000, 4000), schedule(999, 4000))
    assert not is_in_proportion(schedule(1000, 100), schedule(700, 10_000))
    assert is_in_proportion(schedule(1000, 100), schedule(999, 2000)), "so many nodes are few"


def test_what_is_too_large_is_reported_with_the_budget_of_products() -> None:
    without, within_budget = (search(regions(), FitTarget(64, budget)) for budget in (0.0, 1.0))
    assert within_budget.peak < without.peak
    assert within_budget.macs > without.macs
