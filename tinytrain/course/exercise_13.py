"""The exercises of notebook 13: bytes of a plan, tokens and hours, and where the time of a step goes."""

import math
import random
from collections.abc import Callable, Mapping
from numbers import Integral, Real

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.spans_13 import Tree, likely_seconds, some_seconds, timeline


def bytes_needed(
    parameters: int,
    tokens: int,
    *,
    width: int,
    layers: int,
    vocabulary: int,
    processes: int = 1,
    shard: bool = False,
    recompute: bool = False,
) -> int:
    """Bytes that one process holds at most, as if all were there at once; a whole number.

    Four bytes for each weight, gradient and each of AdamW's two moments. All processes have
    their copy of these, or, with ``shard``, the same number of parameters each, rounded up to
    whole ones. ``tokens`` are those that one process has in work. For each of them: in every
    layer 64 times ``width`` bytes; with ``recompute`` only 4 times ``width`` in every layer,
    and 64 times ``width`` for one layer on top, the one that is being computed again. And 12
    times ``vocabulary`` for the logits.
    """
    own = -(-parameters // processes) if shard else parameters  # rounded up
    activations = 4 * width * layers + 64 * width if recompute else 64 * width * layers
    return 16 * own + tokens * (activations + 12 * vocabulary)


_BYTES = {
    "AdamW has two moments, four bytes each for every weight: 16 bytes in all, with weight and gradient.": {"each": 12},
    "The moments are missing: they are twice the weights.": {"each": 8},
    "The gradients are missing: four more bytes for each weight.": {"each": 12},
    "Weights, gradients and moments stay in FP32: four bytes each, 16 in all.": {"each": 10},
    "Without `shard` every process has all of the weights.": {"always shares": True},
    "With `shard` each process has its part of weights, gradients and moments, and of nothing else of it: activations "
    "and logits are those of its own tokens already.": {"shares all": True},
    "With `shard` the moments and gradients are shared out as well, not the weights alone.": {"shares weights": True},
    "`shard` changes nothing here: then each process has its part of the 16 bytes for each parameter.": {"no share": 1},
    "A part is rounded up, so that nothing is left over.": {"floor": True},
    "Round up to whole parameters first; each of them has its 16 bytes.": {"bytes rounded": True},
    "`tokens` are those of one process already, also with `shard`: they are not divided.": {"fewer if shared": True},
    "`tokens` are those of one process already: they are not divided.": {"fewer tokens": True},
    "The layer that is computed again comes on top of what every layer keeps: none is left out.": {"instead": True},
    "With `recompute` one layer is computed again, and it is there in full.": {"no layer": True},
    "With `recompute` each layer still keeps what enters it: 4 times `width` for each token.": {"no inputs": True},
    "`recompute` changes nothing here: then a layer keeps 4 times `width` and no longer 64.": {"no recompute": True},
    "The logits are missing, or their copies are: 12 bytes for each of `vocabulary`.": {"logits": 0},
    "The logits take 12 bytes for each of `vocabulary`: the logits, their log-softmax and their gradient.": {
        "logits": 4
    },
    "The logits are there for every token, not once.": {"logits once": True},
}
"""What a mistake is told, and how it changes the sum."""


def _bytes_with(mistake: Mapping[str, object], plan: Mapping[str, int]) -> int:
    P, n, tokens, width, layers = (plan[k] for k in ("parameters", "processes", "tokens", "width", "layers"))
    if "fewer tokens" in mistake or ("fewer if shared" in mistake and plan["shard"]):
        tokens //= n
    shares = (plan["shard"] or "always shares" in mistake) and "no share" not in mistake
    each = int(mistake.get("each", 16))  # type: ignore[call-overload]
    part = P // n if "floor" in mistake else -(-P // n)
    fixed = each * (part if shares else P)
    if "bytes rounded" in mistake and shares:
        fixed = -(-each * P // n)
    if "shares weights" in mistake and shares:
        fixed = 4 * part + 12 * P
    if plan["recompute"] and "no recompute" not in mistake:
        inputs = layers - ("instead" in mistake)
        kept = 4 * width * inputs * ("no inputs" not in mistake) + 64 * width * ("no layer" not in mistake)
    else:
        kept = 64 * width * layers
    logits = int(mistake.get("logits", 12)) * plan["vocabulary"]  # type: ignore[call-overload]
    rest = tokens * kept + logits * (1 if "logits once" in mistake else tokens)
    return fixed + (-(-rest // n) if "shares all" in mistake and shares else rest)


_NO_SHARES = [tokens for tokens in range(100, 900) if all(tokens % n for n in (2, 3, 5, 7))]
"""counts of tokens that 2 to 9 processes cannot divide evenly: then tokens shared and bytes shared are not the same"""


def check_bytes_needed(answer: Callable[..., int], report: Report) -> None:
    """Plans of every kind, with sizes that no rounding hides."""
    kinds = [(1, False, False), (1, False, True), (2, False, False), (3, True, False), (4, True, True)]
    kinds += [(1, True, False), (1, True, True), (random.randint(5, 9), False, True)]
    for processes, shard, recompute in kinds:
        plan = {
            "parameters": random.randint(5_000, 9_000) * 720 + 1,  # rounding up and down differ for 2 to 9 processes
            "tokens": random.choice(_NO_SHARES),
            "width": random.randint(10, 60),
            "layers": random.randint(3, 9),
            "vocabulary": random.randint(300, 3000),
            "processes": processes,
            "shard": shard,
            "recompute": recompute,
        }
        named = {name: plan[name] for name in ("width", "layers", "vocabulary")}
        if processes > 1:
            named["processes"] = processes
        named |= {name: True for name in ("shard", "recompute") if plan[name]}
        value = answer(plan["parameters"], plan["tokens"], **named)
        case = f"{processes} process{'es' * (processes > 1)}{', shard' * shard}{', recompute' * recompute}"
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        report.need(f"{case}: returns an int", is_whole, f"It returned {type(value).__name__}.")
        wanted = _bytes_with({}, plan)
        found = [told for told, mistake in _BYTES.items() if _bytes_with(mistake, plan) == value != wanted]
        report.need(f"{case}: the bytes", bool(value == wanted), found[0] if found else _any_bytes(value, wanted))


def _any_bytes(value: int, wanted: int) -> str:
    return f"It is {value - wanted:+,} bytes off. Write the three parts as separate lines and look at each."


def timetable(
    tokens: int,
    *,
    rows: int,
    accumulation: int,
    processes: int,
    row_length: int,
    flops_per_token: float,
    peak_tflops: float,
    mfu: float,
) -> tuple[int, int, float]:
    """(tokens in an update, updates, hours) of a run that reads at least ``tokens``.

    Each of ``processes`` has a device of its own, and takes ``accumulation`` micro-batches of
    ``rows`` rows of ``row_length`` tokens for an update. The last update is a full one like all
    others, so a little more than ``tokens`` may be read, and its time counts. A token takes
    ``flops_per_token`` operations; a device could do ``peak_tflops`` times 10^12 in a second,
    and does the share ``mfu`` (0 to 1) of it.
    """
    per_update = rows * row_length * accumulation * processes
    updates = -(-tokens // per_update)
    speed = processes * peak_tflops * 1e12 * mfu / flops_per_token  # tokens per second
    return per_update, updates, updates * per_update / speed / 3600


def check_timetable(answer: Callable[..., tuple[int, int, float]], report: Report) -> None:
    """A run on one device, on several, one that divides evenly, one of a single update, one with a last bit."""
    cases = {"one device": 1, "several devices": random.randint(4, 7), "updates that divide evenly": 2, "one update": 3}
    cases["little left for the last update"] = 2
    for case, processes in cases.items():
        run = {
            "rows": random.randint(8, 12),  # no two factors alike, so that a missing one can be told
            "accumulation": 2 if processes == 3 else 3,
            "processes": processes,
            "row_length": random.randint(40, 90),
            "flops_per_token": random.uniform(1e9, 5e9),
            "peak_tflops": random.uniform(1e-4, 9e-4),
            "mfu": random.uniform(0.2, 0.6),
        }
        each = run["rows"] * run["accumulation"] * processes * run["row_length"]
        n = {"one update": 1}.get(case, random.randint(4, 9))
        left = random.randint(each // 4, each // 2)  # tokens that the last update has too many
        if case == "updates that divide evenly":
            left = 0
        elif case == "little left for the last update":  # down is the nearest, and wrong
            left = random.randint(3 * each // 4, 4 * each // 5)
        tokens = int(n * each - left)
        wanted = (int(each), n, n * each * run["flops_per_token"] / processes / run["peak_tflops"] / 1e12 / run["mfu"])
        wanted = (*wanted[:2], wanted[2] / 3600)
        value = answer(tokens, **run)
        report.need(
            f"{case}: returns three numbers",
            isinstance(value, tuple | list) and len(value) == 3 and all(isinstance(v, Real) for v in value),
            "Wanted is (tokens in an update, updates, hours).",
        )
        per_update, updates, hours = value
        whole = all(isinstance(v, Integral) and not isinstance(v, bool) for v in (per_update, updates))
        report.need(f"{case}: the first two are whole numbers", whole, "Use `//`, or `math.ceil`, which gives an int.")
        report.need(f"{case}: tokens in an update", bool(per_update == wanted[0]), _likely_tokens(per_update, run))
        report.need(f"{case}: updates", bool(updates == wanted[1]), _likely_updates(updates, tokens, each))
        right = bool(abs(hours - wanted[2]) <= 1e-6 * wanted[2])
        report.need(f"{case}: hours", right, _likely_hours(float(hours), wanted[2], tokens / (n * each), run))


def _likely_tokens(value: int, run: Mapping[str, float]) -> str:
    factors = ("rows", "accumulation", "processes", "row_length")
    whole = math.prod(run[name] for name in factors)
    for name in factors:
        if value * run[name] == whole and run[name] > 1:
            return f"`{name}` is missing among its factors."
    return "It is the product of four: rows, row_length, accumulation, processes."


def _likely_updates(value: int, tokens: int, each: float) -> str:
    if value == tokens // each:
        return "It is rounded down, or to the nearest: so many updates read less than `tokens`."
    if value == tokens // each + 1:
        return "Where `tokens` divide evenly there is one update too many."
    return "It is `tokens` over the tokens of an update, rounded up."


def _likely_hours(value: float, wanted: float, read: float, run: Mapping[str, float]) -> str:
    def is_(factor: float) -> bool:
        return bool(abs(value - wanted * factor) <= 1e-6 * wanted * factor)

    told = {
        "Those are seconds.": 3600,
        "Those are minutes.": 60,
        "Those are days.": 1 / 24,
        "The last update is a full one: count the tokens of all updates, not `tokens`.": read,
        "`mfu` is missing: a device reaches only this share of its peak.": run["mfu"],
        "`mfu` belongs under the fraction: less of the peak takes longer.": run["mfu"] ** 2,
        "All devices work at the same time: the speed is that of `processes` devices.": run["processes"],
        "The tokens of an update are those of all processes already: they were divided among the devices twice.": 1
        / run["processes"],
        "An update has `accumulation` micro-batches, and all of them take time.": 1 / run["accumulation"],
        "`flops_per_token` is forward and backward already.": 3,
        "`peak_tflops` counts 10^12 operations at a time.": 1e12,
    }
    found = [text for text, factor in told.items() if abs(factor - 1) > 1e-9 and is_(factor)]
    return found[0] if found else "Tokens of all updates, over tokens per second, over 3600."


def own_seconds(spans: list[tuple[str, float, float]]) -> dict[str, float]:
    """For each name the seconds that were its own, not those of spans inside it.

    ``spans`` holds (name, start, end), in any order. A span lies wholly inside another or
    wholly outside it, spans inside it may have spans inside them, and each lasts some time. A
    name that occurs several times gets the sum; one of which nothing is left gets 0. A span
    that follows another may begin when that one ends, and one that lies inside another may
    begin or end with it; no two are the same. All own seconds together are the time of the
    outermost spans. ``spans`` stays as it is.
    """
    own: dict[str, float] = {}
    around: list[tuple[str, float, float]] = []
    for span in sorted(spans, key=lambda s: (s[1], -s[2])):  # an outer one before those inside
        name, start, end = span
        while around and around[-1][2] <= start:
            around.pop()
        own[name] = own.get(name, 0.0) + end - start
        if around:
            own[around[-1][0]] -= end - start  # the innermost span around it, and no other
        around.append(span)
    return own


def check_own_seconds(answer: Callable[..., dict[str, float]], report: Report) -> None:
    """A step of one level, of two, of three; one that is full; names that occur again; several steps."""

    def leaf(name: str) -> Tree:
        return (name, some_seconds(), [])

    def block() -> Tree:
        return ("block", some_seconds(), [leaf("attention"), leaf("feed forward")])

    cases = {
        "one after the other": [leaf("data"), leaf("forward"), leaf("backward"), leaf("optimizer")],
        "one level inside": [("step", some_seconds(), [leaf("forward"), leaf("backward")]), leaf("data")],
        "two levels inside": [
            ("step", some_seconds(), [("forward", some_seconds(), [leaf("attention"), leaf("loss")])])
        ],
        "nothing but what is inside": [leaf("data"), ("step", 0.0, [leaf("forward"), leaf("backward")])],
        "the same name again": [leaf("data"), ("step", some_seconds(), [block(), block()]), leaf("data")],
        "a name inside itself": [("block", some_seconds(), [("block", some_seconds(), [leaf("norm")])])],
        "three steps": [
            ("step", some_seconds(), [("forward", some_seconds(), [block()]), leaf("backward")]) for _ in range(3)
        ],
    }
    for case, trees in cases.items():
        spans, wanted = timeline(trees, inner_first=case != "three steps")
        given = list(spans)
        value = answer(given)
        report.need(f"{case}: returns a dict", isinstance(value, dict), f"It returned {type(value).__name__}.")
        report.need(f"{case}: the spans are as before", bool(given == spans), "What was handed in is the caller's.")
        names = isinstance(value, dict) and set(value) == set(wanted)
        report.need(f"{case}: has every name", names, f"Wanted are the names {', '.join(sorted(wanted))}.")
        numbers = all(isinstance(v, Real) for v in value.values())
        report.need(f"{case}: of numbers", numbers, "Each name gets its seconds, as a number.")
        off = [name for name in wanted if not abs(value[name] - wanted[name]) <= 1e-6]
        report.need(f"{case}: the own seconds", not off, likely_seconds(value, spans, wanted))


EXERCISES = (
    Exercise(
        number=1,
        title="The memory of a plan",
        goal="Write the bytes of a plan by hand, with copies and with shares, with and without recomputing.",
        difficulty="easy",
        minutes=10,
        solution=bytes_needed,
        check=check_bytes_needed,
        hints=(
            "Three parts: what depends on parameters alone, on tokens and layers, and on tokens and vocabulary.",
            "`shard` touches only the first part, `recompute` only the second; round up with `-(-a // b)`.",
        ),
    ),
    Exercise(
        number=2,
        title="Tokens in an update, and hours",
        goal="Work out how many tokens an update has, how many updates a run takes, and how many hours.",
        difficulty="easy",
        minutes=10,
        solution=timetable,
        check=check_timetable,
        hints=(
            "Rows, row length, accumulation and processes: all four make the tokens of an update.",
            "Tokens per second are operations per second of all devices over `flops_per_token`. Count full updates.",
        ),
    ),
    Exercise(
        number=3,
        title="Where does a step go?",
        goal="A profiler has noted when each part of a step began and ended, parts within parts. Find what each took "
        "by itself.",
        difficulty="medium",
        minutes=20,
        solution=own_seconds,
        check=check_own_seconds,
        hints=(
            "A span's own seconds are its length less the lengths of the spans *directly* inside it.",
            "Sort by start, longer spans first, and keep a list of the spans that you are inside of. The last of them "
            "is the one to take away from.",
        ),
    ),
)
