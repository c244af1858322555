"""Exercise 13.3: timelines of spans within spans with their own seconds, and what each mistake makes of them."""

import random
from collections.abc import Callable, Mapping

Span = tuple[str, float, float]
"""(name, start, end)"""
Tree = tuple[str, float, list]
"""(name, own seconds, trees inside it)"""


def _lay_out(tree: Tree, start: float, spans: list[Span], own: dict[str, float]) -> float:
    """Put a tree on the clock; adds to ``spans`` and ``own``; returns its end."""
    name, seconds, inner = tree
    own[name] = own.get(name, 0.0) + seconds
    now = start
    pauses = [0.0, *sorted(random.choice([0, 16, 32, 48]) / 64 * seconds for _ in inner)]
    for k, each in enumerate(inner):
        now += pauses[k + 1] - pauses[k]
        now = _lay_out(each, now, spans, own)
    now += seconds - pauses[-1]
    spans.append((name, start, now))
    return now


def timeline(trees: list[Tree], *, inner_first: bool = False) -> tuple[list[Span], dict[str, float]]:
    """Spans in a random order, and the own seconds. With ``inner_first`` an inner span stands before the one around it
    that begins with it, so that whoever sorts by start alone is not right by luck."""
    spans: list[Span] = []
    own: dict[str, float] = {}
    now = float(random.randint(1, 50))
    for tree in trees:
        now = _lay_out(tree, now, spans, own)
    random.shuffle(spans)
    if inner_first:
        places = sorted(range(len(spans)), key=lambda place: spans[place][1])
        for place, span in zip(places, sorted(spans, key=_by_start_and_end), strict=True):
            spans[place] = span
    return spans, own


def some_seconds() -> float:
    """Exact in binary, so that sums are as well."""
    return random.randint(4, 60) / 4


def likely_seconds(value: Mapping[str, float], spans: list[Span], own: Mapping[str, float]) -> str:
    """What an answer is told that is not ``own``, the own seconds of ``spans``."""
    whole: dict[str, float] = {}
    last: dict[str, float] = {}
    twice: dict[str, float] = {}
    others: dict[str, float] = {}
    for name, start, end in spans:
        inside = [s for s in spans if start <= s[1] and s[2] <= end and s != (name, start, end)]
        whole[name] = whole.get(name, 0.0) + end - start
        last[name] = end - start - sum(_direct(s, inside) for s in inside)
        twice[name] = twice.get(name, 0.0) + end - start - sum(s[2] - s[1] for s in inside)
        unlike = sum(_direct(s, inside) for s in inside if s[0] != name)
        others[name] = others.get(name, 0.0) + end - start - unlike
    total = sum(own.values())

    def same(other: Mapping[str, float]) -> bool:
        return other != own and all(abs(value[name] - other[name]) <= 1e-6 for name in own)

    told = {
        "Those are whole durations: what lies inside a span counts twice, and more than the step comes out.": whole,
        "What lies two levels inside was taken away from the outermost span twice: once itself, and once with the "
        "span around it.": twice,
        "Where a name occurs again the old seconds were written over: add them up.": last,
        "Those are shares. Wanted are seconds.": {name: seconds / total for name, seconds in own.items()},
        "Those are milliseconds. Wanted are seconds.": {name: 1000 * seconds for name, seconds in own.items()},
        "A span inside one of the same name is a span like others: take it away from the one around it.": others,
        "Of spans that begin together the longer one comes first: it is the one around.": _stacked(spans, _by_start),
        "Of spans that begin together the longer one comes first, not the shorter.": _stacked(spans, _by_start_and_end),
    }
    found = [text for text, other in told.items() if same(other)]
    if not found and any(value[name] < -1e-6 for name in own):
        return "There are negative seconds: something was taken away more often than it was added."
    return found[0] if found else "From each span take away those directly inside it, and add up by name."


def _by_start(span: Span) -> float:
    return span[1]


def _by_start_and_end(span: Span) -> tuple[float, float]:
    return span[1:]


def _stacked(spans: list[Span], order: Callable[..., object]) -> dict[str, float]:
    """The own seconds as they come out in an order in which an inner span may stand before the one around it."""
    own: dict[str, float] = {}
    around: list[Span] = []
    for span in sorted(spans, key=order):  # type: ignore[arg-type]
        while around and around[-1][2] <= span[1]:
            around.pop()
        own[span[0]] = own.get(span[0], 0.0) + span[2] - span[1]
        if around:
            own[around[-1][0]] -= span[2] - span[1]
        around.append(span)
    return own


def _direct(span: Span, inside: list[Span]) -> float:
    """The length of a span, if none of the others lies around it; else 0."""
    held = any(s != span and s[1] <= span[1] and span[2] <= s[2] for s in inside)
    return 0.0 if held else span[2] - span[1]
