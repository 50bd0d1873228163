"""The interactive page in a real Chromium: what is drawn, what the pointer, the wheel and the controls do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxtile.declare.verb import write_result
from onnxtile.report.format import RenderOptions
from onnxtile.report.formats.pictures import HTML
from tests.report.conftest import Plan, bare, row, stacked
from tests.report.test_formats import POINTS

Open = Callable[..., Any]

SMALL = bare(
    [
        row("first", 0, 1024, 0, 4, node="Conv_0", dtype="FLOAT", shape=[1, 256]),
        row("second", 1024, 512, 2, 6, node="Conv_1", dtype="FLOAT16", shape=[256], kind="output"),
        row("inner", 0, 256, 1, 3, node="Relu_0", alias="first"),
        row("third", 2048, 512, 7, 9, node="Conv_2"),
    ],
    schedule=[f"node_{i}" for i in range(10)],
)


@pytest.fixture(name="browser", scope="module")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no Chromium with its driver; Debian has them as chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,900"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(name="opened")
def _opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    def opened(plan: Plan, options: RenderOptions | None = None) -> Any:
        page = tmp_path / "plan.html"
        page.write_bytes(HTML.render(plan, options))
        browser.get(page.as_uri())
        settled(browser)
        return browser

    yield opened
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def settled(page: Any) -> None:
    """Wait for two frames: what was asked for is drawn in the next one."""
    page.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    )


def pointer(page: Any, kind: str, x: float, y: float, number: int = 0, **more: Any) -> None:
    """Let the browser see a mouse event at x, y of a map, as the mouse would make it."""
    left, top = page.execute_script(
        "const b = maps[arguments[0]].canvas.getBoundingClientRect(); return [b.left, b.top];", number
    )
    event = {"type": kind, "x": left + x, "y": top + y, **more}
    page.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    settled(page)


def middle(page: Any, name: str, number: int = 0) -> tuple[int, int]:
    """Return where the middle of a tensor is on a map."""
    x, y = page.execute_script(
        "const m = maps[arguments[1]], r = m.arena.rows.find((row) => row.name === arguments[0]), b = m.box(r);"
        "return [b.x + b.width / 2, b.y + b.height / 2];",
        name,
        number,
    )
    return round(x), round(y)  # where a mouse can be


def pixel(page: Any, x: float, y: float) -> list[int]:
    script = "const m = maps[0]; return [...m.context.getImageData(arguments[0] * m.ratio, arguments[1] * m.ratio, 1, 1).data];"
    found: list[int] = page.execute_script(script, x, y)
    return found[:3]


def text(page: Any, selector: str) -> str:
    return str(page.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def click(page: Any, x: float, y: float, number: int = 0) -> None:
    pointer(page, "mousePressed", x, y, number, button="left", clickCount=1)
    pointer(page, "mouseReleased", x, y, number, button="left", clickCount=1)


def test_tensors_have_the_colour_of_their_kind(opened: Open) -> None:
    page = opened(SMALL, RenderOptions(names=False))
    assert pixel(page, *middle(page, "third")) == [0x7F, 0xB2, 0xD9]
    assert pixel(page, *middle(page, "second")) == [0xE6, 0x9F, 0x00]
    x, y = middle(page, "inner")
    assert pixel(page, x + 60, y) == [0xC6, 0xDF, 0xF0], "beside the line of the peak"


def test_hover_tells_name_node_shape_bytes_and_life(opened: Open) -> None:
    page = opened(SMALL)
    pointer(page, "mouseMoved", *middle(page, "second"))
    said = text(page, "#tip").splitlines()
    assert said == [
        "second",
        "node\tConv_1",
        "type\tfloat16 256",
        "size\t512 bytes",
        "offset\t1,024 bytes",
        "first step\t2 (node_2)",
        "last step\t6 (node_6)",
        "kind\toutput",
    ]
    pointer(page, "mouseMoved", *middle(page, "inner"))
    assert text(page, "#tip").startswith("inner\n")
    assert "alias of\tfirst" in text(page, "#tip")
    pointer(page, "mouseMoved", 2, 2)
    assert page.execute_script("return document.getElementById('tip').hidden")


def test_a_clicked_step_lists_what_is_live(opened: Open) -> None:
    page = opened(SMALL)
    click(page, *middle(page, "inner"))
    said = text(page, "#step")
    assert "step 2: node_2" in said
    assert page.execute_script("return document.getElementById('tip').hidden"), "nothing covers the list"
    assert "2 live buffers, 1.50 KiB" in said
    assert "alias: inner" in said and "second" in said and "third" not in said
    click(page, *middle(page, "inner"))  # elsewhere now: the list takes room
    assert page.execute_script("return document.getElementById('step').hidden")


def test_the_peak_is_selected_by_its_button(opened: Open, plan: Plan) -> None:
    page = opened(plan)
    page.find_element("id", "peak").click()
    said = text(page, "#step").splitlines()
    assert said[0].startswith("step ") and said[0].endswith(f": {plan['schedule'][plan['peak_step']]}")
    live = [b for b in plan["buffers"] if b["alias"] is None and b["first"] <= plan["peak_step"] <= b["last"]]
    assert said[1].startswith(f"{len(live)} live buffers")
    assert len(page.find_elements("css selector", "#step tr")) == 1 + len(live)


def test_names_on_and_off(opened: Open) -> None:
    page = opened(SMALL)
    assert page.execute_script("return maps[0].named") == 3
    page.find_element("id", "names").click()
    settled(page)
    assert not page.execute_script("return shared.names")
    assert pixel(page, *middle(page, "third")) == [0x7F, 0xB2, 0xD9]
    page = opened(SMALL, RenderOptions(names=False))
    assert not page.find_element("id", "names").is_selected()


def test_wheel_zooms_around_the_pointer_and_a_drag_pans(opened: Open) -> None:
    page = opened(SMALL)
    x, y = middle(page, "second")
    before = page.execute_script(
        "return [maps[0].step(arguments[0]), maps[0].bytes(arguments[1]), maps[0].window]", x, y
    )
    pointer(page, "mouseWheel", x, y, deltaX=0, deltaY=-480)
    after = page.execute_script(
        "return [maps[0].step(arguments[0]), maps[0].bytes(arguments[1]), maps[0].window]", x, y
    )
    assert after[:2] == pytest.approx(before[:2], rel=1e-2)
    assert after[2]["x1"] - after[2]["x0"] < 0.9 * (before[2]["x1"] - before[2]["x0"])
    assert after[2]["y1"] - after[2]["y0"] < 0.9 * (before[2]["y1"] - before[2]["y0"])

    pointer(page, "mousePressed", x, y, button="left", clickCount=1)
    pointer(page, "mouseMoved", x + 40, y, button="left", buttons=1)
    pointer(page, "mouseReleased", x + 40, y, button="left", clickCount=1)
    assert page.execute_script("return maps[0].step(arguments[0])", x + 40) == pytest.approx(before[0], rel=1e-2)
    assert page.execute_script("return document.getElementById('step').hidden"), "a drag is no click"
    page.find_element("id", "all").click()
    settled(page)
    assert page.execute_script("return maps[0].window") == before[2]


def test_peak_and_gap_are_marked(opened: Open) -> None:
    page = opened(SMALL, RenderOptions(names=False))
    assert text(page, ".arena h2") == "arena 2.50 KiB, peak 1.50 KiB at step 2, gap 1 KiB (40.0%)"
    assert "gap above the peak" in text(page, "#legend")
    assert text(page, "#figures").splitlines() == [
        "arena",
        "2.50 KiB",
        "proof",
        "smallest of this order, with these aliases",
    ]
    x, y = page.execute_script("const m = maps[0]; return [m.x(2.5), m.y(1800)]")
    column = [pixel(page, x, y + i) for i in range(12)]
    assert any(red > 150 and green < 120 for red, green, _ in column)


def test_a_name_is_found(opened: Open) -> None:
    page = opened(SMALL, RenderOptions(names=False))
    page.find_element("id", "find").send_keys("conv_2")
    settled(page)
    assert pixel(page, *middle(page, "third")) == [0x7F, 0xB2, 0xD9]
    assert pixel(page, *middle(page, "second")) != [0xE6, 0x9F, 0x00]


FOUND = bare(
    [row(f"t{i}", 4 * i, 4, 10 * i, 10 * i + 1, node=f"/h.{i % 3}/n_{i}") for i in range(17)]
    + [row("other", 0, 1 << 20, 200, 900, node="/head/m")],
    schedule=[f"/h.{i % 3}/n_{i}" for i in range(17)] + ["/head/m"],
    steps=[10 * i for i in range(17)] + [200],
    operators=["Conv" if i % 2 else "Relu" for i in range(17)] + ["onnxtile::Linear"],
)


def typed(page: Any, *keys: str) -> str:
    """Type into the find field and return the text beside it."""
    page.find_element("id", "find").send_keys(*keys)
    settled(page)
    return str(page.execute_script("return document.getElementById('count').value"))


def test_find_counts_jumps_and_goes_on(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    page = opened(FOUND)
    whole = page.execute_script("return maps[0].window")
    assert typed(page, "t") == "1 of 18", "a node, an operator or a tensor"
    assert typed(page, Keys.BACKSPACE, "n_") == "1 of 17"
    width, height = page.execute_script("const b = maps[0].box(shared.current); return [b.width, b.height]")
    assert width > 20 and height > 10, "large enough to be seen"
    seen = page.execute_script("const m = maps[0], b = m.box(shared.current); return [m.rowAt(b.x + 1, b.y + 1).name]")
    assert seen == ["t0"]
    assert text(page, "#tip").startswith("t0\n")
    assert typed(page, Keys.ENTER, Keys.ENTER) == "3 of 17"
    assert text(page, "#tip").startswith("t2\n")
    assert typed(page, Keys.SHIFT, Keys.ENTER, Keys.NULL) == "2 of 17"
    assert typed(page, Keys.SHIFT, Keys.ENTER, Keys.ENTER, Keys.NULL) == "17 of 17"
    page.find_element("id", "next").click()
    settled(page)
    assert text(page, "#tip").startswith("t0\n"), "around"
    assert typed(page, "zzz") == "no match"
    assert typed(page, Keys.ESCAPE) == ""
    assert page.execute_script("return maps[0].window") == whole


def test_tensors_can_be_coloured_by_operator_layer_or_kind(opened: Open) -> None:
    page = opened(FOUND, RenderOptions(names=False))
    assert text(page, "#legend").split() == ["Linear", "Relu", "Conv"]
    x, y = middle(page, "other")
    assert pixel(page, x, y) == [0x7F, 0xB2, 0xD9]
    page.find_element("css selector", "#colors input").send_keys("\ue014")  # the right arrow: the next one
    settled(page)
    assert page.execute_script("return shared.coloring.name") == "layer"
    assert text(page, "#legend").split() == ["h.0", "h.1", "h.2", "head"]
    pointer(page, "mouseMoved", x, y)
    assert "layer\thead" in text(page, "#tip").splitlines()
    assert pixel(page, x, y) == [0xC7, 0x9B, 0xE0]
    page.find_element("css selector", "#legend button").click()
    settled(page)
    assert pixel(page, x, y) != [0xC7, 0x9B, 0xE0], "others are pale"
    page.find_element("css selector", "#colors input[value=kind]").send_keys(" ")
    settled(page)
    assert text(page, "#legend") == "activation"
    assert pixel(page, x, y) == [0x7F, 0xB2, 0xD9]


def test_two_fingers_zoom_around_their_middle(opened: Open) -> None:
    page = opened(SMALL)
    left, top = page.execute_script("const b = maps[0].canvas.getBoundingClientRect(); return [b.left, b.top]")
    state = (
        "const m = maps[0]; return [m.step(500), m.bytes(200), m.window.x1 - m.window.x0, m.window.y1 - m.window.y0]"
    )
    step, address, *_ = page.execute_script(state)
    for kind, apart in (("touchStart", 40), ("touchMove", 60), ("touchMove", 80)):
        touches = [{"x": left + 500 + side * apart, "y": top + 200, "id": n} for n, side in enumerate((-1, 1))]
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settled(page)
    after = page.execute_script(state)
    assert after[:2] == pytest.approx([step, address], rel=0.05)
    assert after[2] == pytest.approx(5, rel=0.1), "ten steps were in sight"
    assert page.execute_script("return document.getElementById('step').hidden"), "a pinch is no tap"


def test_a_tap_tells_and_selects(opened: Open) -> None:
    page = opened(SMALL)
    x, y = middle(page, "third")
    left, top = page.execute_script("const b = maps[0].canvas.getBoundingClientRect(); return [b.left, b.top]")
    page.execute_cdp_cmd(
        "Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": left + x, "y": top + y}]}
    )
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    settled(page)
    assert text(page, "#tip").startswith("third\n")
    assert text(page, "#step").startswith("step 8")


def test_the_keyboard_reaches_everything(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    page = opened(SMALL)
    body = page.find_element("tag name", "body")
    body.send_keys("p")
    assert text(page, "#step").startswith("step 2")
    body.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert text(page, "#step").startswith("step 3")
    body.send_keys("/")
    assert page.execute_script("return document.activeElement.id") == "find"
    reached = set()
    for _ in range(15):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(page.execute_script("const e = document.activeElement; return e.id || e.tagName"))
    assert {"peak", "all", "in", "out", "names", "CANVAS"} <= reached


def test_capacity_is_a_line(opened: Open) -> None:
    plan = {**SMALL, "arenas": [{"name": "arena", "capacity": 3072, "size": 2560}]}
    page = opened(plan)
    assert text(page, ".arena h2").startswith("arena 2.50 KiB of 3 KiB, peak")
    top, capacity = page.execute_script("const m = maps[0]; return [m.window.y1, m.y(3072)]")
    assert top > 3072 and capacity > 0


def test_before_and_after_stand_side_by_side_at_one_scale(opened: Open, problem: Plan) -> None:
    page = opened(problem, RenderOptions(before=SMALL))
    headings = page.execute_script("return [...document.querySelectorAll('.arena h2')].map((h) => h.innerText)")
    assert [heading.split(":")[0] for heading in headings] == ["before", "after"]
    left, right = page.execute_script("return maps.map((m) => m.canvas.getBoundingClientRect().left)")
    assert left < right
    low, high = page.execute_script("return maps.map((m) => m.window.y1)")
    assert low == high
    x, y = middle(page, "b1", 1)
    click(page, x, y, 1)
    assert text(page, "#step").startswith("after, step 5")


def test_a_found_tensor_is_shown_in_both_plans(opened: Open) -> None:
    names = [row(f"t{i}", 64 * i, 64, i, i) for i in range(200)]
    page = opened(bare(names), RenderOptions(before=bare(names[50:])))
    typed(page, "t120")
    shown = "return maps.map((m) => [m.window.x0, m.window.x1].map(Math.round))"
    for first, end in page.execute_script(shown):
        assert first <= 120 < end and end - first < 50
    page.execute_script("find('')")
    settled(page)
    assert [first for first, _ in page.execute_script(shown)] == [50, 0]


def test_two_plans_may_each_have_a_scale_of_their_own(opened: Open, problem: Plan) -> None:
    page = opened(problem, RenderOptions(before=SMALL, own_scales=True))
    tops = "return maps.map((m) => m.window.y1)"
    low, high = page.execute_script(tops)
    assert low > 10 * high
    page.find_element("id", "scale").click()
    settled(page)
    assert page.execute_script(tops) == [low, low]
    page.find_element("id", "scale").click()
    assert page.execute_script(tops) == [low, high]
    assert opened(problem).find_element("id", "scale").is_displayed() is False, "one plan has one scale"


def test_odd_names_are_texts(opened: Open, odd: Plan) -> None:
    page = opened(odd, RenderOptions("<b>title</b>"))
    assert page.title == "<b>title</b>"
    assert text(page, "h1") == "<b>title</b>"
    assert page.execute_script("return maps.length") == 2
    pointer(page, "mouseMoved", *middle(page, "</script><b>&amp;", 1), 1)
    pointer(page, "mouseMoved", 300, 40, 0)


def test_a_reader_with_a_dark_system_gets_a_dark_page(opened: Open) -> None:
    page = opened(SMALL, RenderOptions(names=False))
    free = page.execute_script("const m = maps[0]; return [m.x(9.5), m.y(200)];")
    light = pixel(page, *free)
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    settled(page)
    dark = pixel(page, *free)
    assert (light, dark) == ([255, 255, 255], [0x16, 0x19, 0x1D])
    body = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert body == "rgb(22, 25, 29)"
    assert pixel(page, *middle(page, "third")) == [0x7F, 0xB2, 0xD9], "tensors keep their colours"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    settled(page)
    assert pixel(page, *free) == light


def test_a_name_keeps_clear_of_the_line_of_the_peak(opened: Open) -> None:
    page = opened(SMALL)
    left, line, right = page.execute_script(
        "const m = maps[0], s = m.besidePeak(m.inSight(m.box(m.arena.rows[0])));"
        "return [s.left, m.x(m.arena.peakStep + 0.5), s.right];"
    )
    assert line in {left, right}


def test_twenty_thousand_buffers(opened: Open) -> None:
    plan = stacked(20_000, depth=400)
    page = opened(plan)
    assert page.execute_script("return maps[0].arena.rows.length") == 20_000
    name = plan["buffers"][10_000]["name"]
    page.execute_script(
        "const m = maps[0], r = m.arena.rows.find((row) => row.name === arguments[0]), b = m.box(r);"
        "for (let i = 0; i < 20; i += 1) m.zoom(0.8, { x: b.x + b.width / 2, y: b.y + b.height / 2 });",
        name,
    )
    settled(page)
    assert page.execute_script("return maps[0].named") > 0
    pointer(page, "mouseMoved", *middle(page, name))
    assert text(page, "#tip").startswith(name)


def test_a_plan_of_nothing(opened: Open) -> None:
    page = opened(bare([]))
    assert page.find_element("tag name", "canvas").get_attribute("aria-label").startswith("arena 0 bytes")


# The page of a trade.


@pytest.fixture(name="trade")
def _trade(browser: Any, tmp_path: Path) -> Any:
    write_result({"model": "m.onnx", "command": "onnxtile fit m.onnx", **POINTS}, "curve", tmp_path / "c.html")
    browser.get((tmp_path / "c.html").as_uri())
    settled(browser)
    yield browser
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def at_point(page: Any, number: int) -> tuple[float, float]:
    x, y = page.execute_script(
        "const b = circles.find((c) => pointOf(c) === arguments[0]).getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2];",
        number,
    )
    return x, y


def test_a_point_of_a_trade_tells_its_costs_and_marks_its_row(trade: Any) -> None:
    x, y = at_point(trade, 1)
    trade.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    settled(trade)
    assert text(trade, "#tip").splitlines() == [
        "5 KiB",
        "arena\t5,120 bytes, estimated",
        "of before\t24.8%",
        "MACs\t1,100 (+10.0%)",
        "nodes\t4,000",
        "copied\t2,048 bytes",
    ]
    assert trade.execute_script("return [rows.findIndex((r) => r.classList.contains('here')), here]") == [1, 1]
    assert trade.execute_script("return circles.filter((c) => c.classList.contains('here')).length") == 3
    trade.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
    assert trade.execute_script("return [element('tip').hidden, here]") == [True, None]


def test_a_click_on_a_point_copies_the_command_that_makes_it(trade: Any) -> None:
    trade.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    assert not text(trade, "#command"), "no point is chosen yet"
    trade.find_elements("css selector", "#points button")[1].click()
    command = "onnxtile fit m.onnx --capacity 5120"
    copied = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)));"
    assert trade.execute_async_script(copied) == command
    assert (text(trade, "#command"), text(trade, "#copied")) == (command, "copied")
    x, y = at_point(trade, 0)
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
        trade.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    settled(trade)
    assert trade.execute_async_script(copied) == text(trade, "#command") == "onnxtile fit m.onnx --capacity 20672"


def test_a_trade_is_dark_where_the_system_is(trade: Any) -> None:
    color = (
        "return [document.body, document.querySelector('#trade polyline')].map((e) => getComputedStyle(e))"
        ".map((style) => [style.backgroundColor, style.stroke])"
    )
    light = trade.execute_script(color)
    trade.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    dark = trade.execute_script(color)
    trade.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (light[0][0], dark[0][0]) == ("rgb(255, 255, 255)", "rgb(22, 25, 29)")
    assert light[1][1] != dark[1][1]


def test_the_table_of_a_trade_fits_a_narrow_page(browser: Any, tmp_path: Path) -> None:
    large = {"arena": 6_021_120, "macs": 300_774_272, "nodes": 15_407, "copied": 63_094_528}
    points = [{**point, **large} for point in POINTS["curve"]]
    write_result({"model": "m.onnx", "command": "onnxtile fit m.onnx", "curve": points}, "curve", tmp_path / "c.html")
    try:
        browser.set_window_size(600, 900)
        browser.get((tmp_path / "c.html").as_uri())
        settled(browser)
        wide, room = browser.execute_script("const p = element('points'); return [p.scrollWidth, p.clientWidth];")
        assert wide <= room <= 600
        assert browser.find_element("id", "help").is_displayed()
    finally:
        browser.set_window_size(1400, 900)
