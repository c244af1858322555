"""LivePlot: watch a training loop while it runs, and stop it."""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from tinytrain.runlog import Run, read_run
from tinytrain.watch.curve import Curve, number
from tinytrain.watch.marks import Events
from tinytrain.watch.screens import Screen, open_screen
from tinytrain.watch.svg import draw

MOST_CURVES = 8
EARLIER_BINS = 60  # of each curve of an earlier run, which is drawn thin
SPARKS = 24  # characters of the curve in plain text


class LivePlot:
    """Curves that move while a loop trains, with a Stop button that works while it does.

    Each panel is a name, or a tuple of names that share one y axis. `every` is the least time between two
    updates in seconds (0.1 or more); `title` stands over the chart; panels that show a name in `log_scale`
    have a logarithmic y axis.

    In a notebook, Stop makes `log` return False, and ■ in the toolbar (KeyboardInterrupt) ends the `with`
    block: in both cases the code after the block runs. At the end a still picture takes the place of the
    moving one, so that the saved notebook shows it. Where there is no notebook, lines of text are printed
    instead. Any other exception passes through, and the picture stays. Entering again starts an empty chart.

    Memory and the size of an update (10 kB at most) do not grow with the run: points are thinned so that
    every extreme and every NaN stays visible.

    `earlier` is a run to compare with, or its folder: its curves stand behind, thin and grey. As a Trainer's callback
    it marks updates that were skipped and, once they are in their place, checkpoints.

    Raises `ValueError` for panels or settings that cannot be shown.

    >>> with LivePlot("loss", title="two steps") as live:
    ...     for step, loss in enumerate([5, 2]):
    ...         if not live.log(step, loss=loss):
    ...             break
    step 0 | loss 5
    two steps: ended at step 1 after 0:00
    █▁                       loss: 2 at step 1 (first 5, lowest 2 at step 1, highest 5 at step 0)
    >>> live.stopped, live.stopped_by
    (False, None)
    """

    def __init__(
        self,
        *panels: str | Iterable[str],
        every: float = 0.1,
        title: str | None = None,
        log_scale: str | Iterable[str] = (),
        earlier: Run | str | Path | None = None,
    ) -> None:
        self._panels = [_names(panel) for panel in panels]
        self._log_scale = _names(log_scale)
        self._every, self._title = every, title or ""
        self._clock = time.monotonic
        self._lock = threading.RLock()
        self._screen: Screen | None = None
        self._check()
        self._earlier = {} if earlier is None else self._curves_of(earlier)
        self._earlier_label = "" if earlier is None else f"earlier run ({_folder_of(earlier).name})"
        self._clear()

    def _curves_of(self, run: Run | str | Path) -> dict[str, Curve]:
        """The curves of a run that a panel shows; names that its log lacks are left out."""
        curves = {name: Curve(name, EARLIER_BINS) for panel in self._panels for name in panel}
        for record in run if isinstance(run, Run) else read_run(run):
            for name, curve in curves.items():
                value, step = record.get(name), record.get("step")
                if isinstance(value, (int, float)) and step is not None:
                    curve.add(step, value)
        return {name: curve for name, curve in curves.items() if curve.bins}

    def _check(self) -> None:
        names = [name for panel in self._panels for name in panel]
        if not all(isinstance(name, str) for name in names) or not all(self._panels):
            raise ValueError(f"panels {self._panels!r}: each must be a name or a tuple of names")
        if not 1 <= len(names) <= MOST_CURVES or len(set(names)) < len(names):
            raise ValueError(f"panels {self._panels!r}: show 1 to {MOST_CURVES} names, each of them once")
        if unknown := sorted(set(self._log_scale) - set(names)):
            raise ValueError(f"log_scale names {unknown}, which no panel shows; shown are {names}")
        if not self._every >= 0.1:
            raise ValueError(f"every={self._every!r} must be 0.1 s or more: front ends cannot follow faster")

    def _clear(self) -> None:
        bins = _bins_for(len(self._panels), sum(map(len, self._panels)), earlier=len(self._earlier))
        self._events = Events(most=max(4, 24 // len(self._panels)))
        self._curves = {name: Curve(name, bins) for panel in self._panels for name in panel}
        self._stop = threading.Event()
        self._ending = ""
        self._interrupted = False
        self._opened = self._due = self._clock()
        self._closed: float | None = None
        self._step: float | None = None

    @property
    def stopped_by(self) -> Literal["button", "interrupt"] | None:
        """What stopped the loop: the Stop button, the toolbar's interrupt, or None."""
        return "interrupt" if self._interrupted else "button" if self._stop.is_set() else None

    @property
    def stopped(self) -> bool:
        """True once the reader asked to stop."""
        return self.stopped_by is not None

    def __enter__(self) -> "LivePlot":
        if self._screen is not None:
            raise RuntimeError("this LivePlot is open already: make a second one for a second chart")
        self._clear()
        self._screen = open_screen(self, self._stop.set)
        return self

    def log(self, step: float, **values: Any) -> bool:
        """Record values at `step`; False once Stop was pressed. May be called from any thread.

        A value is a number or a tensor with one element (reading one from a GPU waits for it); None is
        skipped. Raises `ValueError` for a name that no panel shows, `TypeError` for what is not a number, and
        `RuntimeError` outside the `with` block.
        """
        if unknown := sorted(set(values) - set(self._curves)):
            raise ValueError(f"log() got {unknown}, which no panel shows; shown are {list(self._curves)}")
        return self._record(step, values)

    def __call__(self, record: Mapping[str, Any]) -> bool:
        """Record what is shown of one line of a run's log, as a Trainer's callback; False to stop.

        Other names are left out, and absent ones are no error. Raises `KeyError` for a record without "step".
        """
        if "step" not in record:
            raise KeyError(f'this record has no "step", only {sorted(record)}')
        odd = record.get("nonfinite") or {}  # a line of JSON has null for NaN, and says here what it was
        shown = {name: record[name] for name in self._curves if name in record}
        shown |= {name: float(odd[name]) for name in shown if name in odd}
        return self._record(record["step"], shown, skipped=bool(record.get("skipped")))

    def checkpoint_saved(self, step: int, full: bool) -> None:
        """Told by a Trainer that a checkpoint is in its place; ``full``: a run can be resumed from it."""
        with self._lock:
            (self._events.saved if full else self._events.weights).add(step)

    def fit_ended(self, report: Any) -> None:
        """Told by a Trainer how its run ended: an interrupt that the Trainer has taken is shown as one here."""
        self._interrupted = report.stopped_by == "interrupt"

    def _record(self, step: Any, values: Mapping[str, Any], skipped: bool = False) -> bool:
        step = _number("step", step)
        if not math.isfinite(step):
            raise ValueError(f"step={step} must be finite")
        points = [(name, _number(name, value)) for name, value in values.items() if value is not None]
        with self._lock:
            if self._screen is None:
                raise RuntimeError("this LivePlot is not open: log inside `with LivePlot(...) as live:`")
            self._step = step
            if skipped:
                self._events.skipped.add(step)
            for name, value in points:
                self._curves[name].add(step, value)
            self._update(self._screen)
        return not self._stop.is_set()

    def _update(self, screen: Screen) -> None:
        """Show the newest state, if the last update is long enough ago."""
        now = self._clock()
        if now >= self._due:
            before = time.thread_time()
            screen.show(self)
            cost = time.thread_time() - before
            self._due = self._clock() + screen.pause(self._every, now - self._opened, cost)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        raised = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._interrupted |= raised
        self._ending = "ended"
        if self.stopped:
            self._ending = f"stopped by {self.stopped_by}"
        elif kind is not None:
            self._ending = f"ended by {kind.__name__}"
        self._closed = self._clock()
        with self._lock:
            screen, self._screen = self._screen, None
            if screen is not None:
                screen.close(self)
        return raised

    def svg(self) -> str:
        """The chart as it is now, as SVG text."""
        panels = [[self._curves[name] for name in panel] for panel in self._panels]
        note = " · ".join(part for part in (self._ending, *self._progress()) if part)
        with self._lock:
            return draw(
                panels,
                title=self._title,
                note=note,
                log_scale=self._log_scale,
                earlier=self._earlier,
                earlier_label=self._earlier_label,
                events=self._events,
            )

    def line(self) -> str:
        """The latest values in one line of text."""
        last = [(curve.name, curve.last[1]) for curve in self._curves.values() if curve.last]
        return " | ".join([f"step {number(self._step or 0)}", *(f"{name} {number(v)}" for name, v in last)])

    def summary(self) -> str:
        """The whole run in words: how it ended, and a line for each curve."""
        when = " after ".join(self._progress())
        title = f"{self._title}: " if self._title else ""
        lines = [f"{curve.sparkline(SPARKS):{SPARKS}} {curve.describe()}" for curve in self._curves.values()]
        return "\n".join([f"{title}{self._ending or 'running'} at {when}", *lines, *self._events.words()])

    def _progress(self) -> tuple[str, str]:
        seconds = int((self._closed or self._clock()) - self._opened)
        step = "no step yet" if self._step is None else f"step {number(self._step)}"
        return step, f"{seconds // 60}:{seconds % 60:02d}"


def _bins_for(panels: int, curves: int, earlier: int = 0) -> int:
    """How many bins a curve may have so that an update of all of them takes about 9 kB."""
    room = 8500 - 550 * panels - 200 * curves - (60 + 7 * EARLIER_BINS) * earlier
    return max(16, min(240, room // (16 * curves) // 2 * 2))


def _folder_of(run: Run | str | Path) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)


def _names(names: Any) -> tuple[Any, ...]:
    return tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)


def _number(name: str, value: Any) -> float:
    """A plain number from a number or a tensor with one element; a `TypeError` names what is neither."""
    try:
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, str):
            raise TypeError("it is text")
        return value if isinstance(value, int) and abs(value) < 2**53 else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name}={value!r} is not a number: {error}") from None
