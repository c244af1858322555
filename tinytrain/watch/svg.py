"""The live chart as one SVG string: recorded curves in, text out. No front end is needed to draw it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tinytrain.watch.axis import Axis, padded
from tinytrain.watch.curve import Bin, Curve, number
from tinytrain.watch.marks import Events
from tinytrain.watch.stroke import bad_spans, band, dots, line

# Colours that the colour-blind can tell apart and that differ in grey; a darker tone for text; dashes.
INKS = (
    ("#0072b2", "#005a8c", ""),
    ("#e69f00", "#8a5f00", "7 3"),
    ("#009e73", "#00664a", "2 3"),
    ("#cc79a7", "#8f4570", "9 3 2 3"),
    ("#333333", "#333333", "1 3"),
    ("#d55e00", "#a34700", "12 4"),
    ("#56b4e9", "#1f6f9f", "9 3 2 3 2 3"),
    ("#8c6d31", "#6b5220", "4 2"),
)
ALARM = "#b00020"
EARLIER = "#a6a6a6"
FEW = 25  # up to this many points, each is marked
HEADER, FOOTER = 30, 20  # pixels over and under all panels
KEY_ROW, LETTER = 13, 5.3  # pixels: height of a row of the key, width of one of its letters
TOP, BOTTOM, LEFT, RIGHT = 34, 40, 56, 72  # pixels around the axes of one panel


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one pair of axes; `bins[i]` are the points to draw for `curves[i]`."""

    curves: Sequence[Curve]
    bins: Sequence[Sequence[Bin]]
    x: Axis
    y: Axis
    earlier: Sequence[Curve] = ()

    def __iter__(self) -> Iterator[tuple[Curve, Sequence[Bin], tuple[str, str, str]]]:
        """Each curve with its bins and its ink."""
        return ((c, b, INKS[i % len(INKS)]) for i, (c, b) in enumerate(zip(self.curves, self.bins, strict=True)))

    def ticks(self, axis: Axis) -> list[tuple[int, str]]:
        """Pixels and texts of an axis's round values; none while there is nothing to measure."""
        has_values = any(curve.bins for curve in self.curves)
        return [(round(axis.place(value)), text) for value, text in axis.ticks()] if has_values else []


def draw(
    panels: Sequence[Sequence[Curve]],
    *,
    title: str = "",
    note: str = "",
    log_scale: Collection[str] = (),
    earlier: Mapping[str, Curve] | None = None,
    earlier_label: str = "earlier run",
    events: Events | None = None,
    max_bytes: int = 9000,
) -> str:
    """Draw each group of curves on its own axes, two beside each other, over a shared range of steps.

    `title` stands at the top left, `note` (grey) at the top right. A panel that shows a name in `log_scale`
    has a logarithmic y axis. The latest value stands at each line's end. A value that is not finite leaves a
    gap, shades its steps, and is named. Once points share bins, a line shows their mean and the band around
    it reaches from their lowest to their highest. `earlier` holds the curves of another run by their names, drawn
    as grey lines behind. `events` are marked on the lower edge: skipped updates as strokes, checkpoints as
    triangles under it. A drawing of more than `max_bytes` is made again with fewer, wider bins, down to 4 a curve.

    >>> loss = Curve("loss")
    >>> loss.add(0, 5.5)
    >>> draw([[loss]]).startswith("<svg xmlns=")
    True
    """
    most = max((len(curve.bins) for curves in panels for curve in curves), default=0)
    by = 1
    behind = Behind(earlier or {}, earlier_label, events or Events())
    while len(svg := _draw(panels, title, note, log_scale, behind, by).encode()) > max_bytes and most > 4 * by:
        by *= 2
    return svg.decode()


@dataclass(frozen=True, slots=True)
class Behind:
    """What is drawn beside the curves themselves."""

    earlier: Mapping[str, Curve]
    label: str
    events: Events

    def key(self) -> list[str]:
        """What the signs mean, and how often each is there."""
        return [*([f"grey: {self.label}"] if self.earlier else []), *self.events.words()]


def _draw(
    groups: Sequence[Sequence[Curve]], title: str, note: str, log_scale: Collection[str], behind: Behind, by: int
) -> str:
    """Layer over layer, each for all panels at once: what they share is then written once."""
    columns = min(2, len(groups))
    width, height = (640, 270) if columns == 1 else (420, 240)
    points = max((curve.width for curves in groups for curve in curves), default=1) * by
    means = [f"line: mean of {points:,} points, band: their lowest to highest"] if points > 1 else []
    key = _rows([*behind.key(), *means], columns * width - 32)
    panels_end = HEADER + -(-len(groups) // columns) * height
    size = (columns * width, panels_end + FOOTER + KEY_ROW * max(0, len(key) - 1))
    panels = []
    for i, curves in enumerate(groups):
        left, top = i % columns * width, HEADER + i // columns * height
        log = any(curve.name in log_scale for curve in curves)
        bins = [curve.joined(by) if by > 1 else curve.bins for curve in curves]
        before = [behind.earlier[curve.name] for curve in curves if curve.name in behind.earlier]
        x = Axis(*_step_range([*groups, list(behind.earlier.values())]), left + LEFT, left + width - RIGHT, whole=True)
        y = Axis(
            *_value_range([*bins, *(curve.bins for curve in before)], log), top + height - BOTTOM, top + TOP, log=log
        )
        panels.append(Panel(curves, bins, x, y, before))
    parts = [_frame(size, _words(groups, title, behind)), _captions(size, title, note, key)]
    parts += [_grid(panels), _shades(panels), _earlier(panels), _bands(panels), _lines(panels)]
    parts += [_events(panels, behind.events), _labels(panels)]
    return "".join([*parts, "</svg>"])


def _words(panels: Sequence[Sequence[Curve]], title: str, behind: Behind) -> str:
    """What the picture shows, for those who cannot see it."""
    curves = "; ".join([*(curve.brief() for curves in panels for curve in curves), *behind.events.words()])
    return f"{title}: {curves}" if title else curves


def _frame(size: tuple[int, int], words: str) -> str:
    """A white card: it reads the same in a light and in a dark notebook."""
    width, height = size
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{escape(words)}'"
        f" viewBox='0 0 {width} {height}' width='{width}' height='{height}' font-size='11' fill='#555'"
        " font-family='system-ui,sans-serif'"
        " style='max-width:100%;height:auto;font-variant-numeric:tabular-nums'>"
        f"<rect x='.5' y='.5' width='{width - 1}' height='{height - 1}' rx='8' fill='#fff' stroke='#ddd'/>"
    )


def _rows(parts: Sequence[str], width: int) -> list[str]:
    """The parts in as few rows of text as have room for them, each part whole."""
    rows: list[str] = []
    for part in parts:
        if rows and LETTER * len(f"{rows[-1]} · {part}") <= width:
            rows[-1] += f" · {part}"
        else:
            rows.append(part)
    return rows


def _captions(size: tuple[int, int], title: str, note: str, key: Sequence[str]) -> str:
    right, bottom = size[0] - 16, size[1] - 11
    rows = "".join(
        f"<text x='{right}' y='{bottom - KEY_ROW * row}' font-size='10' fill='#777'>{escape(text)}</text>"
        for row, text in enumerate(reversed(key))
    )
    return (
        f"<text x='16' y='25' font-size='15' font-weight='600' fill='#111'>{escape(title)}</text>"
        f"<g text-anchor='end'><text x='{right}' y='24' font-size='12'>{escape(note)}</text>"
        f"{rows}</g>"
    )


def _step_range(panels: Sequence[Sequence[Curve]]) -> tuple[float, float]:
    bins = [b for curves in panels for curve in curves for b in curve.bins]
    first = min((min(b.first, b.last) for b in bins), default=0)
    return first, max(max((max(b.first, b.last) for b in bins), default=1), first + 1)


def _value_range(bins: Sequence[Sequence[Bin]], log: bool) -> tuple[float, float]:
    """The range of the y axis; a logarithmic one covers what is above 0."""
    shown = [b for some in bins for b in some if b.count and (b.high > 0 or not log)]
    low = min((b.low if b.low > 0 or not log else b.high for b in shown), default=0.1 if log else 0.0)
    return padded(low, max((b.high for b in shown), default=1.0), log=log)


def _layer(attributes: str, parts: Iterable[str]) -> str:
    return f"<g {attributes}>{body}</g>" if (body := "".join(parts)) else ""


def _grid(panels: Sequence[Panel]) -> str:
    lines, frame, x_texts, y_texts = [], [], [], []
    for panel in panels:
        left, right, bottom = panel.x.start, panel.x.end, panel.y.start
        frame.append(f"M{left} {bottom}H{right}")
        x_texts.append(f"<text x='{(left + right) / 2:g}' y='{bottom + 31}'>step</text>")
        for x, text in panel.ticks(panel.x):
            frame.append(f"M{x} {bottom}v4")
            x_texts.append(f"<text x='{x}' y='{bottom + 16}'>{text}</text>")
        for y, text in panel.ticks(panel.y):
            lines.append(f"M{left} {y}H{right}")
            y_texts.append(f"<text x='{left - 7}' y='{y + 4}'>{text}</text>")
    paths = f"<path d='{''.join(lines)}' stroke='#e8e8e8'/><path d='{''.join(frame)}' stroke='#888'/>"
    return paths + _layer("text-anchor='middle'", x_texts) + _layer("text-anchor='end'", y_texts)


def _shades(panels: Sequence[Panel]) -> str:
    """The steps where values were not finite: a tint over the panel, under a bar on its upper edge."""
    tints, bars = [], []
    for panel in panels:
        for a, b in (span for bins in panel.bins for span in bad_spans(bins, panel.x)):
            tints.append(f"M{a:.0f} {panel.y.end}H{b:.0f}V{panel.y.start}H{a:.0f}z")
            bars.append(f"M{a:.0f} {panel.y.end}H{b:.0f}v-5H{a:.0f}z")
    paths = f"<path d='{''.join(tints)}' fill-opacity='.12'/><path d='{''.join(bars)}'/>" if bars else ""
    return _layer(f"fill='{ALARM}'", [paths])


def _earlier(panels: Sequence[Panel]) -> str:
    """The other run's curves: thin and grey, so that none is taken for a curve of this one."""
    paths = (f"<path d='{d}'/>" for p in panels for c in p.earlier if (d := line(c.bins, p.x, p.y)))
    return _layer(f"transform='scale(.1)' fill='none' stroke='{EARLIER}' stroke-width='12'", paths)


def _events(panels: Sequence[Panel], events: Events) -> str:
    """Skipped updates as strokes on the lower edge, checkpoints as triangles under it, hollow for weights only."""
    skipped, full, hollow = [], [], []
    for panel in panels:
        bottom = panel.y.start
        for a, b in events.skipped.spans:
            x = panel.x.place(a)
            skipped.append(f"M{x:.0f} {bottom}v-9" + (f"m0 8H{panel.x.place(b):.0f}" if b > a else ""))
        for marks, paths in ((events.saved, full), (events.weights, hollow)):
            for place in sorted({round(panel.x.place((a + b) / 2)) for a, b in marks.spans}):
                paths.append(f"M{place - 3} {bottom + 7}l3-6 3 6z")
    parts = [f"<path stroke='{ALARM}' stroke-width='2' d='{''.join(skipped)}'/>"] if skipped else []
    parts += [f"<path fill='#333' d='{''.join(full)}'/>"] if full else []
    parts += [f"<path fill='#fff' stroke='#333' d='{''.join(hollow)}'/>"] if hollow else []
    return "".join(parts)


def _bands(panels: Sequence[Panel]) -> str:
    """Outlined as well as filled, so that a single spike stays visible."""
    paths = []
    for panel in panels:
        for _, bins, (color, _, _) in panel:
            if d := band(bins, panel.x, panel.y):
                paths.append(f"<path color='{color}' d='{d}'/>")
    look = "fill='currentColor' fill-opacity='.22' stroke='currentColor' stroke-opacity='.4' stroke-width='1.5'"
    return _layer(f"transform='scale(.5)' {look} stroke-linejoin='round'", paths)


def _lines(panels: Sequence[Panel]) -> str:
    paths = []
    for panel in panels:
        for _, bins, (color, _, dash) in panel:
            dashes = f" stroke-dasharray='{' '.join(f'{n}0' for n in dash.split())}'" if dash else ""
            if d := line(bins, panel.x, panel.y):
                paths.append(f"<path stroke='{color}' d='{d}'{dashes}/>")
            if len(bins) <= FEW and (d := dots(bins, panel.x, panel.y)):
                paths.append(f"<path stroke='{color}' stroke-width='45' d='{d}'/>")
    look = "fill='none' stroke-width='18' stroke-linejoin='round' stroke-linecap='round'"
    return _layer(f"transform='scale(.1)' {look}", paths)


def _labels(panels: Sequence[Panel]) -> str:
    """The words that must stay readable, over everything else."""
    alarms = _layer(
        f"fill='{ALARM}' font-weight='600' paint-order='stroke' stroke='#fff' stroke-width='3'",
        (text for panel in panels for text in _warnings(panel)),
    )
    names = (text for panel in panels for text in (*_heading(panel), *_latest(panel)))
    return alarms + _layer("font-size='12' font-weight='600'", names)


def _heading(panel: Panel) -> Iterator[str]:
    """The names, each in its line's colour; where there are several, behind a piece of the line."""
    x, y = panel.x.start, panel.y.end - 12
    for curve, _, (color, dark, dash) in panel:
        if len(panel.curves) > 1:
            sample = f"d='M{x:.0f} {y - 4}h20' stroke-width='2' stroke-dasharray='{dash}'"
            yield f"<path {sample} stroke='{color}'/>"
            x += 25
        yield f"<text x='{x:.0f}' y='{y}' fill='{dark}'>{escape(curve.name)}</text>"
        x += 7.2 * len(curve.name) + 18


def _warnings(panel: Panel) -> Iterator[str]:
    """In words what a line cannot show: where it first was not finite, or had no place on a log axis."""
    found = []
    for curve in panel.curves:
        name = f"{curve.name}: " if len(panel.curves) > 1 else ""
        if curve.first_bad is not None:
            found.append((curve.first_bad[0], name + curve.warning()))
        if panel.y.log and curve.first_not_positive is not None:
            step = curve.first_not_positive
            found.append((step, f"{name}0 or less first at step {number(step)}, below a log axis"))
    for row, (step, text) in enumerate(found):
        x, y = panel.x.place(step), panel.y.end + 14 + 14 * row
        early = x < (panel.x.start + panel.x.end) / 2
        anchor = "" if early else " text-anchor='end'"
        yield f"<text x='{x + 6 if early else x - 6:.0f}' y='{y}'{anchor}>{escape(text)}</text>"


def _latest(panel: Panel) -> Iterator[str]:
    """A dot on each curve's latest point and its value beside it, pushed down where two would overlap."""
    points = [(*curve.last, ink) for curve, _, ink in panel if curve.last is not None]
    ends = [(panel.y.place(v) if v - v == 0 else panel.y.end, step, v, ink) for step, v, ink in points]
    free = panel.y.end - 14.0
    for y, step, value, (color, dark, _) in sorted(ends):
        finite = value - value == 0
        if finite:
            place = f"cx='{panel.x.place(step):.1f}' cy='{y:.1f}'"
            yield f"<circle {place} r='3.5' fill='{color}' stroke='#fff'/>"
        free = max(free + 14, y)
        ink = dark if finite else ALARM
        yield f"<text x='{panel.x.end + 8}' y='{free + 4:.1f}' fill='{ink}'>{number(value)}</text>"
