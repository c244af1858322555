"""The chart, read back from its SVG text."""

import math
import random
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from tinytrain.watch.curve import Curve
from tinytrain.watch.marks import Events
from tinytrain.watch.svg import ALARM, EARLIER, INKS, draw

SVG = "{http://www.w3.org/2000/svg}"


def curve(name, values, max_bins=160):
    made = Curve(name, max_bins)
    for step, value in enumerate(values):
        made.add(step, value)
    return made


def noisy(n, seed=0):
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(n)]


def texts(svg):
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def curve_paths(svg):
    """The points, in pixels, of each stretch of each scaled path: bands (closed) and lines."""
    layers = dict(re.findall(r"<g transform='scale\(([.\d]+)\)'[^>]*>(.*?)</g>", svg))
    ds = {k: re.findall(r"<path (?!stroke='#\w+' stroke-width)[^>]*?d='([^']*)'", v) for k, v in layers.items()}
    return {
        "band": [part for d in ds.get(".5", ()) for part in stretches(d, 0.5)],
        "line": [part for d in ds.get(".1", ()) for part in stretches(d, 0.1)],
    }


def stretches(d, scale):
    out = []
    for part in re.findall(r"M[^M]*", d):
        x = y = 0
        points = []
        numbers = [int(n) for n in re.findall(r"-?\d+", part)]
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + dx, y + dy
            points.append((x * scale, y * scale))
        out.append(points)
    return out


def pixel_of(svg, value):
    """Where `value` belongs on the y axis of a one-panel chart, judged by the numbers written beside it."""
    ticks = re.findall(r"<text x='49' y='(\d+)'>([-.,\d]+)</text>", svg)
    (y0, v0), (y1, v1) = [(int(y) - 4, float(v.replace(",", ""))) for y, v in (ticks[0], ticks[-1])]
    return y0 + (value - v0) / (v1 - v0) * (y1 - y0)


def test_a_point_lies_where_the_numbers_on_the_axis_say():
    svg = draw([[curve("loss", [4.0, 1.0, 3.0, 2.0])]])
    (line,) = curve_paths(svg)["line"]
    assert [y for _, y in line] == pytest.approx([pixel_of(svg, v) for v in (4, 1, 3, 2)], abs=1)
    gaps = [b - a for (a, _), (b, _) in pairwise(line)]
    assert gaps == pytest.approx([gaps[0]] * 3, abs=0.11)


@pytest.mark.parametrize("spike", [0, 7_777, 19_999])
def test_a_spike_among_20000_points_is_drawn_at_full_height(spike):
    values = noisy(20_000)
    values[spike] = 60.0
    svg = draw([[curve("grad_norm", values)]])
    highest = min(y for part in curve_paths(svg)["band"] for _, y in part)
    assert highest == pytest.approx(pixel_of(svg, 60.0), abs=1.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n", [10, 20_000])
def test_a_value_that_is_not_finite_leaves_a_gap_a_mark_and_its_step(value, n):
    values = noisy(n)
    whole = draw([[curve("loss", values)]])
    values[n // 2] = value
    svg = draw([[curve("loss", values)]])
    assert len(curve_paths(svg)["line"]) > len(curve_paths(whole)["line"]) == 1
    assert any(f"first at step {n // 2:,}" in text for text in texts(svg))
    (start, end) = map(int, re.search(r"M(\d+) 64H(\d+)v-5", svg).groups())
    middle = 56 + (640 - 72 - 56) * (n // 2) / (n - 1)
    assert start <= middle <= end and end - start < 20
    assert "first at step" not in whole and "v-5" not in whole


def test_a_run_that_is_nan_from_some_step_on_is_shaded_to_its_end_and_says_nan_there():
    svg = draw([[curve("loss", [3.0] * 50 + [math.nan] * 51)]])
    start, end = map(int, re.search(r"M(\d+) 64H(\d+)v-5", svg).groups())
    assert (start, end) == (56 + 256 - 2, 640 - 72 + 2), "from the middle of the axis to its end"
    assert "NaN" in texts(svg) and "NaN first at step 50 (51 in all)" in texts(svg)


def test_only_nan_is_still_a_chart():
    svg = draw([[curve("loss", [math.nan] * 5)]])
    assert "NaN first at step 0 (5 in all)" in texts(svg)
    assert curve_paths(svg)["line"] == []


@pytest.mark.parametrize("panels", [[1], [1, 1], [2, 1], [2, 1, 1, 1], [1] * 6, [4, 4], [1] * 8])
@pytest.mark.parametrize("kind", ["noise", "every other NaN", "huge"])
def test_a_drawing_never_exceeds_its_bytes(panels, kind):
    values = [math.nan if i % 2 and kind == "every other NaN" else v for i, v in enumerate(noisy(20_000))]
    if kind == "huge":
        values = [v * 1e300 for v in values]
    names = iter("abcdefgh")
    svg = draw([[curve(f"value_{next(names)}", values, 200) for _ in range(n)] for n in panels])
    assert len(svg.encode()) <= 9000


def test_the_latest_value_stands_at_the_lines_end_behind_a_dot():
    svg = draw([[curve("loss", [5.0, 2.34567])]])
    dot = re.search(r"<circle cx='([.\d]+)' cy='([.\d]+)'", svg)
    x, y = re.search(r"<text x='(\d+)' y='([.\d]+)'[^>]*>2\.346</text>", svg).groups()
    assert float(dot[1]) == 640 - 72 and int(x) > 640 - 72
    assert float(y) == pytest.approx(float(dot[2]) + 4, abs=0.1)


def test_two_latest_values_that_are_alike_do_not_overlap():
    svg = draw([[curve("loss", [5.0, 2.345]), curve("eval_loss", [5.1, 2.346])]])
    ys = [float(y) for y in re.findall(r"<text x='576' y='([.\d]+)'", svg)]
    assert len(ys) == 2 and abs(ys[0] - ys[1]) >= 12


def test_axes_are_named_and_the_picture_has_words():
    svg = draw([[curve("loss", [5.0, 2.0])], [curve("grad_norm", [1.0, math.nan])]], title="tiny", note="0:07")
    assert texts(svg).count("step") == 2
    assert {"loss", "grad_norm", "tiny", "0:07"} <= set(texts(svg))
    root = ET.fromstring(svg)
    assert root.get("role") == "img"
    words = root.get("aria-label")
    assert words.startswith("tiny: loss: 2 at step 1") and "NaN first at step 1" in words


def test_lines_are_thinned_honestly_and_the_chart_says_so():
    assert not any("mean of" in text for text in texts(draw([[curve("loss", noisy(150))]])))
    assert "line: mean of 128 points, band: their lowest to highest" in texts(draw([[curve("loss", noisy(20_000))]]))


def test_names_and_titles_cannot_break_out_of_the_markup():
    nasty = "<script>alert('x')</script>&\""
    svg = draw([[curve(nasty, [1.0, math.nan])]], title=nasty, note=nasty)
    assert "<script" not in svg
    assert texts(svg).count(nasty) == 3


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0],
        [1e308, -1e308, 1e308],
        [5e-324, 0.0],
        [7.0] * 9,
        [1e9, 1e9 + 1e-6],
        [3, -2],
        [math.inf, 1.0],
    ],
)
@pytest.mark.parametrize("log", [(), ("loss",)])
def test_any_floats_give_a_chart_with_finite_coordinates_inside_it(values, log):
    svg = draw([[curve("loss", values)]], log_scale=log)
    ET.fromstring(svg)
    drawing = re.sub(r">[^<]*<|aria-label='[^']*'", "><", svg)
    assert not re.search(r"\b(nan|inf)\b", drawing)
    for part in curve_paths(svg)["line"]:
        assert all(56 <= x <= 568.1 and 63.9 <= y <= 260.1 for x, y in part)


def test_a_log_axis_says_what_it_cannot_show():
    svg = draw([[curve("grad_norm", [1.0, 100.0, 0.0, 10.0])]], log_scale=["grad_norm"])
    assert "0 or less first at step 2, below a log axis" in texts(svg)
    assert {"1", "10", "100"} <= set(texts(svg))
    (line,) = curve_paths(svg)["line"]
    ys = [y for _, y in line]
    assert ys[2] == pytest.approx(260, abs=0.1), "0 lies on the lower edge"
    assert ys[0] - ys[3] == pytest.approx(ys[3] - ys[1], abs=0.2), "tenfold is tenfold"


def test_drawing_leaves_the_curves_as_they_are():
    made = [curve(name, noisy(20_000), 200) for name in "abcdefgh"]
    before = [repr(c.bins) for c in made]
    draw([[c] for c in made])
    assert [repr(c.bins) for c in made] == before


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_and_lines_differ_without_colour():
    assert all(1.05 / (luminance(dark) + 0.05) >= 4.5 for _, dark, _ in INKS), "WCAG AA on white"
    assert abs(luminance(INKS[0][0]) - luminance(INKS[1][0])) > 0.2, "the first two differ in grey"
    assert len({dash for _, _, dash in INKS}) == len(INKS), "and all differ by their dashes"


def test_an_earlier_run_is_a_grey_line_behind_in_the_same_axes_and_is_named():
    now, before = curve("loss", [4.0, 3.0]), curve("loss", [5.0, 4.0, 3.0, 2.0])
    svg = draw([[now]], earlier={"loss": before}, earlier_label="earlier run (a<b)")
    grey = re.search(rf"stroke='{EARLIER}'[^>]*><path d='([^']*)'/>", svg)
    (line,) = stretches(grey[1], 0.1)
    assert [y for _, y in line] == pytest.approx([pixel_of(svg, v) for v in (5, 4, 3, 2)], abs=1)
    assert svg.index(grey[0]) < svg.index(INKS[0][0]), "behind the run itself"
    assert any("grey: earlier run (a<b)" in text for text in texts(svg))


def test_a_gap_in_an_earlier_run_stays_a_gap():
    svg = draw([[curve("loss", [4.0])]], earlier={"loss": curve("loss", [5.0, 4.0, math.nan, 2.0, 1.0])})
    assert len(stretches(re.search(rf"stroke='{EARLIER}'[^>]*><path d='([^']*)'/>", svg)[1], 0.1)) == 2


def test_skipped_updates_and_checkpoints_are_marked_at_their_steps_and_told():
    events = Events()
    for step in (2, 3, 8):
        events.skipped.add(step)
    events.saved.add(5)
    events.weights.add(9)
    svg = draw([[curve("loss", [1.0] * 11)]], events=events)
    left, right = 56, 640 - 72
    place = {step: left + step / 10 * (right - left) for step in range(11)}
    (strokes,) = re.findall(rf"<path stroke='{ALARM}' stroke-width='2' d='([^']*)'", svg)
    assert [int(x) for x in re.findall(r"M(\d+)", strokes)] == pytest.approx([place[s] for s in (2, 3, 8)], abs=1)
    (full,) = re.findall(r"<path fill='#333' d='M(\d+)", svg)
    (hollow,) = re.findall(r"<path fill='#fff' stroke='#333' d='M(\d+)", svg)
    assert (int(full) + 3, int(hollow) + 3) == pytest.approx((place[5], place[9]), abs=1)
    said = " ".join(texts(svg))
    assert "3 updates skipped, the first at step 2" in said and "1 checkpoint, at step 5" in said
    assert "1 checkpoint of weights only, at step 9" in said


def test_a_long_key_takes_rows_of_its_own_and_none_is_cut():
    events = Events()
    events.skipped.add(1)
    events.saved.add(2)
    events.weights.add(3)
    runs = [[curve("loss", noisy(5000))]]
    earlier = {"loss": curve("loss", noisy(9))}
    svg = draw(runs, earlier=earlier, earlier_label="earlier run (a name of some length)", events=events)
    key = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if e.get("font-size") == "10"]
    assert len(key) == 2 and all(len(e.text) * 5.3 <= 640 - 32 for e in key)
    heights = sorted(float(e.get("y")) for e in key)
    assert [b - a for a, b in pairwise(heights)] == [13] and heights[0] > 300
    plain = draw(runs)
    assert "height='320'" in plain and "height='333'" in svg


def test_a_run_full_of_marks_beside_an_earlier_one_stays_small():
    events = Events(most=6)
    for step in range(0, 20_000, 3):
        events.skipped.add(step)
        events.saved.add(step + 1)
    names = ["loss", "grad_norm", "lr", "tokens_per_second"]
    panels = [[curve(name, noisy(20_000, i))] for i, name in enumerate(names)]
    earlier = {name: curve(name, noisy(20_000, 9), max_bins=60) for name in names}
    assert len(draw(panels, earlier=earlier, events=events).encode()) <= 9000
