"""Results as tables: every verb has one, numbers are readable, and names that look like markup stay as they are."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from onnxtile.report.table import as_html, cell_width, endings, places, plain, short, table
from onnxtile.report.tables import _HOMES, for_lowered, tables_called

EQUAL = {"name": "y", "max_abs": 0.0, "max_rel": 3e-6, "tolerance": 1e-4, "equal": True}
VERDICT = {"equal": True, "runs": 2, "dims": {"N": 2}, "outputs": [EQUAL]}


def rendered(verb: str, result: dict[str, Any], *, in_pipe: bool = True) -> str:
    parts = tables_called(verb, result)
    if in_pipe:
        return "".join(f"{row}\n" for part in parts for row in plain(part))
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def test_match() -> None:
    result = {"query": "q", "matches": [{"root": "a[b]", "nodes": ["a[b]", "c"], "anchors": {"Add#1": "c"}}]}
    text = rendered("match", result)
    assert "1 matches" in text
    assert "a[b]" in text and "Add#1=c" in text
    assert rendered("match", {"query": "q", "matches": []}) == "no match\n"


def test_fuse() -> None:
    refused = [{"root": "n[0]", "reason": "a path leaves it"}]
    patterns = [{"name": "Linear", "matches": 1200, "fused": 3, "calls": [], "refused": refused}]
    result = {"patterns": patterns, "nodes_before": 614, "nodes_after": 12, "verdict": VERDICT, "sites": [{}]}
    text = rendered("fuse", result)
    for words in ("614 nodes became 12", "1,200", "n[0]", "a path leaves it", "2 runs at N=2", "3e-06"):
        assert words in text, words
    assert "not verified" in rendered("fuse", {**result, "verdict": None})


def test_unfuse() -> None:
    text = rendered("unfuse", {"unfused": {"Linear": 3}, "verdict": VERDICT})
    assert "Linear" in text and "verified" in text


def test_verify_shows_a_difference_without_bounds() -> None:
    missing = {
        "name": "z",
        "max_abs": None,
        "max_rel": None,
        "tolerance": 0.0,
        "equal": False,
        "reason": "only one has it",
    }
    outputs = [one | {"why": "float32", "where": None} for one in (EQUAL, missing)]
    runs = {"runs": 1, "inputs": ["random 1"], "dims": {"N": 2}, "skipped": {"large": "no such index"}}
    text = rendered("verify", {"equal": False, "outputs": outputs, **runs})
    assert "1 run: random 1 (at N=2)" in text
    assert "not run on large" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("z"))
    assert line.split()[1:3] == ["∞", "∞"]
    assert "NO" in line and "only one has it" in line


@pytest.mark.parametrize("in_pipe", [True, False])
def test_a_long_name_is_shown_whole(in_pipe: bool) -> None:
    name = "/model/encoder/" + "layer/" * 60 + "MatMul"
    text = rendered("unfuse", {"unfused": {name: 1}, "verdict": None}, in_pipe=in_pipe)
    assert name in "".join(line.strip(" │┃").split(" ")[0] for line in text.splitlines())


def test_of_many_rows_the_first_are_shown_and_how_to_see_all() -> None:
    made, all_shown = (table("many", ("name", "bytes"), [(f"n[{i}]", i) for i in range(count)]) for count in (200, 60))
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(*short(made))
    lines = capture.get()
    assert "n[59]" in lines and "n[60]" not in lines
    assert "and 140 more" in lines and "--json" in lines
    assert short(all_shown) == [all_shown]


def test_plan() -> None:
    arenas = [{"name": "sram", "capacity": 4096, "size": 1024, "peak": 1024}]
    owner, view, scratch = (
        {"name": name, "alias": alias, "kind": kind, "size": 64}
        for name, alias, kind in (("a", None, "activation"), ("b", "a", "activation"), ("w", None, "workspace"))
    )
    copies = {"avoided": 3, "avoided_bytes": 4096, "remaining": 1, "remaining_bytes": 16}
    result = {
        **{"arenas": arenas, "buffers": [owner, view, scratch], "schedule": ["n"], "copies": copies, "planner": "best"},
        **{
            "peak": 1000,
            "peak_step": 2,
            "lower_bound": 1000,
            "bound": "peak",
            "optimal": False,
            "optimal_over": None,
            "any_order_bound": 900,
            "gap": 24,
            "ended": "effort",
        },
        **{"activation_bytes": 9999, "in_place": 1, "constants": [], "outside": [], "unplanned": []},
    }
    text = rendered("plan", result)
    for words in (
        "1,024 of 4,096 bytes",
        "1, the largest of 64 bytes",
        "1,000 bytes at step 2",
        "24 bytes (2.4%)",
        "3 (4,096 bytes)",
        "9,999 bytes",
        "1 (1 in place)",
        "activations without sharing",
    ):
        assert words in text, words
    assert "900 bytes, with any aliases" in text
    result |= {"optimal": True, "gap": 0, "ended": "lower bound reached", "order": "model", "optimal_over": "order"}
    assert "yes, smallest of this order, with these aliases: lower bound reached" in rendered("plan", result)
    assert "yes, smallest that holds in every order, with these aliases" in rendered("plan", result | {"order": "any"})
    assert "yes, smallest for these live ranges" in rendered("plan", result | {"schedule": []})
    over_all = rendered("plan", result | {"optimal_over": "any order"})
    assert "yes, smallest of any order: lower bound reached" in over_all
    assert "lower bound over all orders" not in over_all
    unplanned = [{"name": "u", "reason": "why"}]
    text = rendered(
        "plan", result | {"optimal": False, "optimal_over": None, "ended": "unplanned tensors", "unplanned": unplanned}
    )
    assert "1,024 of 4,096 bytes, without 1 unplanned tensor" in text
    assert "no: 1 of the tensors are unplanned" in text


def test_a_plain_table_is_as_wide_as_its_cells() -> None:
    made = table("title", ["name", "bytes"], [("a" * 300, 12_345), ("日本", 7)])
    head, names, first, second = plain(made)
    assert head == "title"
    assert names == f"name{' ' * 296}   bytes"
    assert first == f"{'a' * 300}  12,345"
    assert second == f"日本{' ' * 296}       7"


def test_plain_tables_have_no_lines() -> None:
    result = {"unfused": {"Linear": 1}, "verdict": None}
    assert not set("│┃━─┏┓") & set(rendered("unfuse", result))
    assert set("│┃━") & set(rendered("unfuse", result, in_pipe=False))


@pytest.mark.parametrize("name", sorted(_HOMES))
def test_the_tables_of_other_modules_are_there(name: str) -> None:
    assert callable(getattr(import_module(f"onnxtile.report.{_HOMES[name]}"), f"for_{name}"))


def test_tile_shows_the_choice_the_trade_and_the_peaks() -> None:
    one = {"tile": [8, 4, 8], "order": "mnk", "nodes": 20, "bytes_moved": 1200, "held": 96}
    other = {**one, "nodes": 7, "bytes_moved": 90_000}
    choice = {**one, "lower_bound": 1000.4, "ratio": 1.1995, "trade": [other, one]}
    choice["limited_by"] = {"m": "memory", "k": None, "n": "max"}
    sizes = {"op": "MatMul", "m": 16, "k": 8, "n": 16, "grid": [2, 2, 2], "matmuls": 8}
    tiled = [{"node": "a", **sizes, "choice": choice}, {"node": "b", **sizes, "choice": None}]
    peaks = {"sum": {"model": 7000, "layers": 640}, "chain": {"model": 7000, "layers": 512}}
    result = {
        "tiled": tiled,
        "skipped": [{"node": "c", "reason": "too small", "bind": None}],
        "nodes_before": 3,
        "nodes_after": 40,
    }
    text = rendered("tile", {**result, "verdict": None, "sites": [], "peaks": peaks})
    for words in (
        "3 nodes became 40",
        "8×4×8",
        "1,200",
        "1,000",
        "1.200",
        "memory M, max N",
        "nodes against bytes: a",
        "90,000",
        "too small",
    ):
        assert words in text, words
    assert [line.split() for line in text.splitlines() if line.startswith(("sum", "chain"))] == [
        ["sum", "640", "7,000"],
        ["chain", "512", "7,000"],
    ]
    assert "live" not in rendered("tile", {**result, "verdict": None, "sites": []})


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["b.0.x", "b.1.x", "b.2.x", "head"], "b.{0..2}.x, head"),
        (["b.3.1", "b.3.2", "b.4.0"], "b.3.{1,2}, b.4.0"),
        (["b.3/b.3.1", "b.3/b.3.2", "b.4/b.4.1", "b.4/b.4.2"], "b.{3,4}/b.{3,4}.{1,2}"),
        (["b.0.n5", "b.1.n17", "b.2.n29"], "b.0.n5, b.1.n17 and 1 more"),
        (["a1", "a1"], "a1"),
    ],
)
def test_names_that_differ_in_numbers_stand_for_all_combinations(names: list[str], shown: str) -> None:
    assert places(names) == shown


def test_explain_has_a_line_for_operators_that_the_model_lacks() -> None:
    reason = {"variant": 1, "nodes": 1, "part": "Add", "reason": "Mul 'm' is not Add", "roots": ["c"]}
    start = {"variant": 1, "missing": ["Add"], "operators": ["Conv"], "nodes": 1}
    result = {"pattern": "P", "matches": [], "earlier": [], "repeated": 0, "causes": [], "fused": 0, "already": {}}
    text = rendered("explain", {**result, "reasons": [reason], "beginnings": [start]})
    assert "variant 1 needs Add, which the model does not have" in text and "partial matches" not in text
    long = {**reason, "reason": "; ".join(["Mul 'm' is not Add"] * 99)}
    text = rendered("explain", {**result, "reasons": [long], "beginnings": [{**start, "missing": []}]})
    assert max(map(len, text.splitlines())) < 400
    text = rendered("explain", {**result, "reasons": [reason], "beginnings": [{**start, "missing": []}]})
    assert "Mul 'm' is not Add" in text and "does not have" not in text


def test_tile_says_what_sizes_of_convolutions_are_and_leaves_out_tables_that_compare_nothing() -> None:
    one = {"tile": [50, 2, 96, 1, 1], "order": "mnk", "nodes": 9, "held": 1008, "bytes_moved": 1200}
    choice = {**one, "lower_bound": 1000.4, "ratio": 1.1995, "trade": [one]}
    choice["limited_by"] = {"groups": None, "rows": "max", "columns": "m", "channels": None, "filters": None}
    cuts = {"groups": 50, "rows": 2, "columns": 96, "channels": 1, "filters": 1}
    sizes = {"op": "Conv", "m": 16, "k": 8, "n": 16, "grid": [1, 2, 1], "matmuls": 8}
    result = {"tiled": [{"node": "a", **sizes, "choice": choice, "cuts": cuts}], "skipped": []}
    peaks = {way: {"model": 7000, "layers": 640} for way in ("sum", "chain")}
    shown = {**result, "nodes_before": 3, "nodes_after": 40, "verdict": None, "sites": [], "peaks": peaks}
    text = rendered("tile", shown)
    assert "4×1×2×1" in text, "the stretches of groups come first, and the product is the number of tiles"
    assert "max rows, m columns" in text
    assert "a tile of a convolution is groups×rows×columns×channels×filters" in text
    assert "nodes against bytes" not in text
    assert "however partial sums are added: 640 inside tiled layers, 7,000 in the main graph" in text


def test_tile_shows_each_level_of_a_choice_and_what_limits_its_axes() -> None:
    outer = {
        "level": "outer",
        "tile": [9, 8, 9],
        "order": "nmk",
        "held": 900,
        "bytes_moved": 1200,
        "lower_bound": 1000.0,
    }
    outer |= {"ratio": 1.2, "limited_by": {"m": "memory", "k": None, "n": "choice"}}
    inner = {
        **outer,
        "level": "inner",
        "tile": [4, 4, 4],
        "order": "mnk",
        "bytes_moved": 3000,
        "held": 192,
        "ratio": 3.0,
    }
    inner |= {"limited_by": {"m": "max", "k": "max", "n": "memory"}}
    one = {"tile": [9, 8, 9], "order": "nmk", "nodes": 20, "bytes_moved": 1200, "held": 900}
    choice = {**one, "lower_bound": 1000.0, "ratio": 1.2, "trade": [one], "levels": [outer, inner]}
    sizes = {"op": "MatMul", "m": 16, "k": 8, "n": 16, "grid": [4, 2, 4], "matmuls": 32}
    other = {**choice, "levels": [{**outer, "bytes_moved": 1201}, inner]}
    tiled = [{"node": name, **sizes, "choice": each} for name, each in (("a", choice), ("b", choice), ("c", other))]
    text = rendered("tile", {"tiled": tiled, "skipped": [], "nodes_before": 3, "nodes_after": 60, "verdict": None})
    rows = text[text.index("on two levels") :].splitlines()[2:6]
    below = ["inner", "4×4×4", "mnk", "192", "3,000", "1,000", "3.000", "max", "M", "K,", "memory", "N"]
    above = ["outer", "9×8×9", "nmk", "900", "1,200", "1,000", "1.200", "memory", "M,", "choice", "N"]
    assert [row.split()[-len(cells) :] for row, cells in zip(rows, (above, below), strict=False)] == [above, below]
    assert rows[3].split() == below and "1,201" in rows[2]
    assert "tiles chosen\n" not in text


def test_tile_groups_the_nodes_that_it_left_and_says_how_the_arena_changed() -> None:
    skipped = [{"node": f"n{i}", "reason": "within the limits", "bind": None} for i in range(12)]
    skipped.insert(3, {"node": "conv", "reason": "convolutions are cut only on request", "bind": None})
    bind = "--dim n=N"
    skipped += [{"node": f"open{i}", "reason": f"axis 0 of 'x{i}': {bind}", "bind": bind} for i in range(2)]
    result = {"tiled": [], "skipped": skipped, "nodes_before": 15, "nodes_after": 15, "verdict": None}
    arena = {"before": 1000, "after": 1250, "reason": None}
    text = rendered("tile", {**result, "arena": arena, "warnings": ["the arena grew"]})
    lines = [" ".join(row.split()) for row in text.splitlines()]
    assert lines.index("12 within the limits n0, n1, n2 and 9 more") < lines.index(
        "1 convolutions are cut only on request conv"
    )
    assert "2 a size is open: bind it with --dim n=N open0, open1" in lines
    assert "arena: 1,000 bytes before, 1,250 bytes after (+25.0%)" in lines
    assert "warning: the arena grew" in lines
    absent = {"before": None, "after": None, "reason": "planned only with verification"}
    assert "arena: planned only with verification" in rendered("tile", {**result, "arena": absent})


def test_a_title_is_bold_and_says_what_it_says() -> None:
    import io

    from rich.console import Console

    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard").print(
        table("[/red] \x1b title", ("a",), [("b" * 30,)])
    )
    assert "\x1b[1m[/red] \\x1b title" in file.getvalue()


def narrow(made: Any, width: int = 80) -> str:
    console = Console(width=width, color_system=None, force_terminal=True)
    with console.capture() as capture:
        console.print(made)
    return capture.get()


PATHS = [f"/model/encoder/layers.{i}/attention/{name}/MatMul" for i in range(2) for name in ("query", "key")]


def test_paths_are_shortened_to_ends_that_tell_them_apart() -> None:
    assert endings([*PATHS, "/model/head/MatMul", "Conv_1", "a b/c"]) == [
        *(f"…/layers.{i}/attention/{name}/MatMul" for i in range(2) for name in ("query", "key")),
        "…/head/MatMul",
        "Conv_1",
        "a b/c",
    ]
    assert endings(["/a/b/c", "/x/a/b/c"]) == ["/a/b/c", "/x/a/b/c"], "an end of another stays whole"
    assert endings(["/m/a/Add", "/m/b/Add", "/m/a/Add"]) == ["…/a/Add", "…/b/Add", "…/a/Add"]
    assert endings(["/m/a/Add", "/m/a/Add"]) == ["/m/a/Add", "/m/a/Add"], "there is nothing to tell it apart from"


def test_a_wide_table_fits_a_narrow_terminal() -> None:
    rows = [(name, "MatMul", "1×197×768", 116_195_328, 232_390_656, "a reason that takes some words") for name in PATHS]
    made = table("nodes", ("node", "operator", "shape", "MACs", "FLOPs", "reason"), rows)
    text = narrow(made)
    assert max(map(len, text.splitlines())) <= 80
    assert "name; left out: reason; in a pipe and with --json all is whole" in " ".join(text.split())
    assert text.count("116,195,328") == len(PATHS), "no number is broken"
    whole = narrow(made, 200)
    assert all(name in whole for name in PATHS)
    assert "…" not in whole and "left out" not in whole
    assert PATHS[0] in "".join(plain(made))


def test_demo_shows_each_stage_and_the_chain_of_commands() -> None:
    plain = {"meta_ops": 0, "tiles": 0, "activations": 4 << 20, "arena_with_insides": 2 << 20, "error": 0.0}
    first = {"model": "original", "file": "m.onnx", "command": "", "nodes": 9, "arena": 1 << 20, "live": [0, 1 << 20]}
    fused = {
        "model": "fused",
        "file": "m.fused.onnx",
        "command": "fuse m.onnx",
        "nodes": 3,
        "arena": 4096,
        "live": [1, 9],
    }
    text = rendered("demo", {"folder": "out", "stages": [{**first, **plain}, {**fused, **plain}]})
    assert "4 MiB" in text and "1 MiB" in text and "2 MiB" in text
    assert [line.split()[1] for line in text.splitlines() if "▁" in line] == ["▁▁"]
    commands = [line.strip() for line in text.splitlines() if line.startswith("  onnxtile")]
    assert commands == [
        "onnxtile fuse m.onnx",
        "onnxtile plan m.fused.onnx --emit plan.html",
        "onnxtile verify m.onnx m.fused.planned.onnx",
    ]
    assert "out/m.fused.plan.html" in text
    assert "each body counts once" in text, "the tiles that run are more"


def test_equal_cells_of_a_table_are_held_once() -> None:
    made = table("nodes", ("name", "type"), [(f"n{n}", "[red]float32") for n in range(100)])
    assert len({id(cell) for cell in made.columns[1].cells}) == 1
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(made)
    assert capture.get().count("[red]float32") == 100


# What was lowered to what, and what was not, for a reader.


SITES = [
    {"call": "gelu", "meta_op": "GeLU", "operator": "Gelu"},
    {"call": "gelu_2", "meta_op": "GeLU", "operator": "Gelu"},
    {"call": "norm", "meta_op": "LayerNorm", "reason": "its mean is of axis 1"},
    {"call": "mlp", "meta_op": "SwiGLU", "reason": "no operator is known", "opened": True},
]


def shown(result: dict[str, object]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        for part in for_lowered(result):
            console.print(part)
    return capture.get()


def test_sites_are_counted_by_operator_and_by_reason() -> None:
    text = shown({"lowered": SITES})
    lines = [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]
    assert "GeLU Gelu 2" in lines
    assert "LayerNorm kept 1 its mean is of axis 1 norm" in lines
    assert "SwiGLU parts lowered 1 no operator is known mlp" in lines


def test_sites_that_were_not_run_alone_are_named() -> None:
    skipped = {"call": "gelu", "equal": True, "outputs": [], "also": 0, "skipped": "no kernel for Gelu of bfloat16"}
    assert "no kernel for Gelu of bfloat16" in shown({"lowered": SITES, "sites": [skipped]})


def test_without_lowering_there_is_no_table() -> None:
    assert for_lowered({"lowered": []}) == []
    assert for_lowered({}) == []


@pytest.mark.parametrize(("rows", "shown", "left"), [(12, 12, ""), (13, 13, ""), (14, 12, "and 2 more rows")])
def test_a_table_of_a_notebook_hides_no_single_row(rows: int, shown: int, left: str) -> None:
    html = as_html([table("t", ("name",), [(f"r{i}",) for i in range(rows)])])
    assert html.count("<td") == shown and (left in html) and ("more" in html) == bool(left)


def test_signs_that_take_one_column_need_no_table_of_widths() -> None:
    printed = "".join(filter(str.isprintable, map(chr, (*range(0x300), *range(0x2010, 0x2028)))))
    assert cell_width(printed) == cell_len(printed) == len(printed)
    assert cell_width("名 ×") == cell_len("名 ×") == 4
