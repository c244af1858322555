"""Answers to the exercises of notebook 13: wrong ones with what they must be told, and other right ones."""

import itertools
import math


def needed(each=16, *, always=False, never=False, everything=False, weights=False, floor=False, **parts):
    """An answer to the first exercise with one thing changed."""

    def answer(parameters, tokens, *, width, layers, vocabulary, processes=1, shard=False, recompute=False):
        own = parameters
        if (shard or always) and not never:
            own = parameters // processes if floor else -(-parameters // processes)
        fixed = 4 * own + 12 * parameters if weights and shard else each * own
        kept = 64 * width * layers
        if recompute and parts.get("recompute", True):
            kept = 4 * width * layers * parts.get("inputs", 1) + 64 * width * parts.get("layer", 1)
        rest = tokens * (kept + parts.get("logits", 12) * vocabulary)
        return fixed + (-(-rest // processes) if everything and shard else rest)

    return answer


def instead(parameters, tokens, *, width, layers, vocabulary, processes=1, shard=False, recompute=False):
    own = -(-parameters // processes) if shard else parameters
    kept = 4 * width * (layers - 1) + 64 * width if recompute else 64 * width * layers
    return 16 * own + tokens * (kept + 12 * vocabulary)


def bytes_rounded(parameters, tokens, *, processes=1, shard=False, **sizes):
    rest = needed()(0, tokens, **sizes)
    return (-(-16 * parameters // processes) if shard else 16 * parameters) + rest


def fewer_tokens(only_shared):
    def answer(parameters, tokens, *, processes=1, shard=False, **sizes):
        own = tokens // processes if shard or not only_shared else tokens
        return needed()(parameters, own, processes=processes, shard=shard, **sizes)

    return answer


def logits_once(parameters, tokens, *, width, layers, vocabulary, processes=1, shard=False, recompute=False):
    own = -(-parameters // processes) if shard else parameters
    kept = 4 * width * layers + 64 * width if recompute else 64 * width * layers
    return 16 * own + tokens * kept + 12 * vocabulary


def in_parts(parameters, tokens, *, width, layers, vocabulary, processes=1, shard=False, recompute=False):
    share = parameters if not shard else (parameters + processes - 1) // processes
    weights, gradients, moments = 4 * share, 4 * share, 8 * share
    activations = 0
    for layer in range(layers):
        full = not recompute or layer == 0
        activations += tokens * width * (64 if full else 4)
    if recompute:
        activations += tokens * width * 4
    return weights + gradients + moments + activations + 12 * vocabulary * tokens


def table(change=None, updates=None, hours=None):
    """An answer to the second exercise with one thing changed."""

    def answer(tokens, *, rows, accumulation, processes, row_length, flops_per_token, peak_tflops, mfu):
        each = rows * accumulation * processes * row_length
        each = each // {"rows": rows, "accumulation": accumulation, "processes": processes}.get(change, 1)
        n = updates(tokens, each) if updates else -(-tokens // each)
        seconds = n * each * flops_per_token / (processes * peak_tflops * 1e12 * mfu)
        if hours:
            return each, n, hours(seconds, tokens / (n * each), processes, mfu, accumulation)
        return each, n, seconds / 3600

    return answer


def by_the_update(tokens, *, rows, accumulation, processes, row_length, flops_per_token, peak_tflops, mfu):
    """Each device does its own part of an update."""
    own = rows * accumulation * row_length
    updates = math.ceil(tokens / (own * processes))
    hours = updates * own * flops_per_token / (peak_tflops * mfu) / 3.6e15
    return own * processes, updates, hours


def durations(spans):
    found = {}
    for name, start, end in spans:
        found[name] = found.get(name, 0) + end - start
    return found


def inside(spans, one):
    return [s for s in spans if s is not one and one[1] <= s[1] and s[2] <= one[2]]


def less_all_inside(spans):
    found = {}
    for one in spans:
        own = one[2] - one[1] - sum(s[2] - s[1] for s in inside(spans, one))
        found[one[0]] = found.get(one[0], 0) + own
    return found


def direct(spans, one):
    within = inside(spans, one)
    return [s for s in within if not any(s in inside(within, other) for other in within)]


def own_of(spans, one):
    return one[2] - one[1] - sum(s[2] - s[1] for s in direct(spans, one))


def by_direct(spans):
    """Slow, and right."""
    found = {}
    for one in spans:
        found[one[0]] = found.get(one[0], 0) + own_of(spans, one)
    return found


def written_over(spans):
    return {one[0]: own_of(spans, one) for one in spans}


def shares(spans):
    found = by_direct(spans)
    return {name: seconds / sum(found.values()) for name, seconds in found.items()}


def in_the_given_order(spans):
    """Right only if an outer span stands before those inside it."""
    found, around = {}, []
    for name, start, end in spans:
        while around and around[-1][2] <= start:
            around.pop()
        found[name] = found.get(name, 0) + end - start
        if around:
            found[around[-1][0]] -= end - start
        around.append((name, start, end))
    return found


def sorted_by(order):
    return lambda spans: in_the_given_order(sorted(spans, key=order))


def other_names_only(spans):
    """Takes away what lies directly inside, unless it has the name of the span itself."""
    found = {}
    for one in spans:
        own = one[2] - one[1] - sum(s[2] - s[1] for s in direct(spans, one) if s[0] != one[0])
        found[one[0]] = found.get(one[0], 0) + own
    return found


def sorts_in_place(spans):
    spans.sort(key=lambda s: (s[1], -s[2]))
    return in_the_given_order(spans)


def midpoints(spans):
    """Cuts time at every start and end; each piece belongs to the shortest span around it."""
    cuts = sorted({at for _, start, end in spans for at in (start, end)})
    found = dict.fromkeys((name for name, _, _ in spans), 0.0)
    for a, b in itertools.pairwise(cuts):
        around = [s for s in spans if s[1] <= a and b <= s[2]]
        if around:
            found[min(around, key=lambda s: s[2] - s[1])[0]] += b - a
    return found


WRONG = {
    1: {
        "one moment": (needed(12), "two moments"),
        "no moments": (needed(8), "The moments are missing"),
        "moments in 16 bits": (needed(10), "stay in FP32"),
        "divides without shard": (needed(always=True), "Without `shard` every process has all"),
        "never shares": (needed(never=True), "`shard` changes nothing here"),
        "shares activations too": (needed(everything=True), "of its own tokens already"),
        "shares the weights alone": (needed(weights=True), "not the weights alone"),
        "rounds down": (needed(floor=True), "rounded up"),
        "forgets the layer in work": (needed(layer=0), "it is there in full"),
        "forgets the inputs": (needed(inputs=0), "still keeps what enters it"),
        "does not recompute": (needed(recompute=False), "`recompute` changes nothing here"),
        "no logits": (needed(logits=0), "The logits are missing"),
        "logits alone": (needed(logits=4), "12 bytes for each"),
        "logits once": (logits_once, "for every token, not once"),
        "one layer less": (instead, "none is left out"),
        "bytes rounded up": (bytes_rounded, "whole parameters first"),
        "fewer tokens": (fewer_tokens(False), "they are not divided"),
        "fewer tokens of a share": (fewer_tokens(True), "also with `shard`"),
        "far off": (needed(logits=13), "bytes off"),
        "a float": (lambda *a, **k: float(needed()(*a, **k)), "It returned float"),
    },
    2: {
        "no accumulation": (table("accumulation"), "`accumulation` is missing"),
        "no processes": (table("processes"), "`processes` is missing"),
        "no rows": (table("rows"), "`rows` is missing"),
        "rounded down": (table(updates=lambda t, each: t // each), "rounded down"),
        "the nearest": (table(updates=lambda t, each: round(t / each)), "or to the nearest"),
        "always one more": (table(updates=lambda t, each: t // each + 1), "one update too many"),
        "updates not whole": (table(updates=lambda t, each: t / each), "which gives an int"),
        "seconds": (table(hours=lambda s, *_: s), "Those are seconds"),
        "minutes": (table(hours=lambda s, *_: s / 60), "Those are minutes"),
        "stops at tokens": (table(hours=lambda s, read, *_: s * read / 3600), "The last update is a full one"),
        "full peak": (table(hours=lambda s, r, p, mfu, a: s * mfu / 3600), "`mfu` is missing"),
        "mfu above": (table(hours=lambda s, r, p, mfu, a: s * mfu**2 / 3600), "under the fraction"),
        "one device": (table(hours=lambda s, r, p, mfu, a: s * p / 3600), "All devices work at the same time"),
        "devices twice": (table(hours=lambda s, r, p, mfu, a: s / p / 3600), "divided among the devices twice"),
        "not tera": (table(hours=lambda s, *_: s * 1e12 / 3600), "10^12 operations at a time"),
        "three times": (table(hours=lambda s, *_: 3 * s / 3600), "forward and backward already"),
    },
    3: {
        "durations": (durations, "Those are whole durations"),
        "less all inside": (less_all_inside, "was taken away from the outermost span twice"),
        "written over": (written_over, "the old seconds were written over"),
        "shares": (shares, "Those are shares"),
        "milliseconds": (lambda spans: {n: 1000 * s for n, s in by_direct(spans).items()}, "Those are milliseconds"),
        "drops what is empty": (lambda spans: {n: s for n, s in by_direct(spans).items() if s}, "Wanted are the names"),
        "other names only": (other_names_only, "A span inside one of the same name"),
        "by start": (sorted_by(lambda s: s[1]), "the longer one comes first"),
        "by start and end": (sorted_by(lambda s: s[1:]), "the longer one comes first"),
        "in the given order": (in_the_given_order, "DOES NOT HOLD"),
        "sorts in place": (sorts_in_place, "What was handed in is the caller's"),
        "a list": (lambda spans: list(by_direct(spans).items()), "It returned list"),
    },
}
RIGHT = {
    1: {"part by part": in_parts, "by one formula": needed()},
    2: {"by the update": by_the_update, "in one go": table()},
    3: {"by pairs": by_direct, "by cuts": midpoints},
}
