"""Training compared with evaluation, and both with what can be."""

import numpy as np

from tinytrain.watch.doctor.curve import PREFLIGHT
from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import Reading, medians, spread

TOO_GOOD = 0.10
"""share of the first loss. Bytes of English end at 0.6 to 0.7 nats with the best compressors, 0.11 to 0.13 of ln 256;
subwords at 2 nats or more, 0.18 of ln 50,000"""
TURNED = 0.02
"""share by which the evaluation must have risen over its lowest. In the healthy runs it rises by 0.01 at most"""
APART = 0.20
"""share by which evaluation lies above training while no row was seen twice. Healthy runs: up to 0.13"""
BEHIND = 0.05
"""share by which the loss lies above that of the run it is compared with. The healthy small run differs by up to 0.02
between seeds at its end"""
PADDED = 1.001
"""targets over positions that carry a token; more than 1 cannot be"""


def padding_trained(reading: Reading) -> list[Finding]:
    tokens, positions, padding = (reading.column(name) for name in ("tokens", "positions", "padding"))
    real = positions * (1 - padding)
    wrong = np.flatnonzero(tokens > PADDED * real + 0.5)
    if len(wrong) < 0.1 * reading.n:
        return []
    return [
        reading.finding(
            int(wrong[0]),
            name="padding is trained on",
            stage="input",
            symptom="there are more targets than positions that carry a token",
            evidence=f"{np.median(tokens[wrong]):.0f} targets on {np.median(real[wrong]):.0f} tokens and "
            f"{np.median((positions - real)[wrong]):.0f} padded positions, in {len(wrong)} of {reading.n} batches",
            cause="labels at padding are not -100, or the mask is the wrong way round; the loss is too low for it",
            checks=("print labels and attention_mask of one row", "set labels to -100 where the mask is 0"),
        )
    ]


def behind(reading: Reading, other: Reading) -> list[Finding]:
    """A loss that lies above another run's at the same update: what a log alone cannot show."""
    mine, its = _by_step(reading), _by_step(other)
    common = sorted(set(mine) & set(its))
    if len(common) < 20:
        return []
    a, b = (np.array([losses[step] for step in common]) for losses in (mine, its))
    late = slice(-max(10, len(common) // 5), None)
    ends, share = (float(np.median(a[late])), float(np.median(b[late]))), spread(a[late] - b[late])
    if ends[0] - ends[1] <= max(BEHIND * ends[1], 3 * share / np.sqrt(len(a[late]))):
        return []
    ratio = medians(a, reading.width) / medians(b, reading.width)
    near = np.flatnonzero(ratio <= 1 + BEHIND)
    start = common[min((int(near[-1]) + 1 if len(near) else 0) * reading.width, len(common) - 1)]
    line = int(reading.made[list(mine).index(start)])
    return [
        reading.finding(
            line,
            name="behind the other run",
            stage="shape",
            symptom="the loss lies above that of the run that it is compared with",
            evidence=f"{ends[0]:.3f} nats against {ends[1]:.3f} ({ends[0] / ends[1] - 1:+.1%}) at update {common[-1]}",
            cause="what differs between the two runs; if more than one thing does, nothing can be said",
            checks=(
                "list what differs, and change one thing at a time",
                f"decay groups, initial scale, embeddings: {PREFLIGHT}",
                "repeat both with other seeds",
            ),
        )
    ]


def _by_step(reading: Reading) -> dict[int, float]:
    return {reading.at(int(line)): float(loss) for line, loss in zip(reading.made, reading.loss, strict=True)}


def evaluations(reading: Reading) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lines, evaluation losses, training losses just before) where an evaluation was made."""
    values = reading.column("eval_loss")
    lines = np.flatnonzero(np.isfinite(values))
    near = [reading.loss[(reading.made <= i) & (reading.made > i - max(5, reading.n // 20))] for i in lines]
    return lines, values[lines], np.array([np.median(part) if len(part) else np.nan for part in near])


def apart(reading: Reading) -> list[Finding]:
    lines, held, train = evaluations(reading)
    epoch = reading.column("epoch")[lines]
    fresh = epoch == 0 if np.isfinite(epoch).all() else np.arange(len(lines)) < max(1, len(lines) // 10)
    far = np.flatnonzero((held > (1 + APART) * train) & fresh & (train > TOO_GOOD * reading.first_loss))
    if not len(far) or (fresh.sum() > 2 and len(far) < 2) or not (held > (1 + APART) * train)[far[0] :].all():
        return []
    i = far[0]
    return [
        reading.finding(
            int(lines[i]),
            name="evaluation apart",
            stage="eval",
            symptom="evaluation is far above training before anything could be learnt by heart",
            evidence=f"{held[i]:.3f} nats against {train[i]:.3f} in training ({held[i] / train[i] - 1:+.0%}); "
            f"at the last evaluation {held[-1]:.3f} against {train[-1]:.3f}",
            cause="another kind of text, another tokenizer or another mode: dropout left on in evaluation",
            checks=(
                "evaluate on rows of the training text: is that as far away?",
                "is the model in eval mode, and does each of its dropouts look at that?",
                "decode a row of the evaluation data",
            ),
        )
    ]


def overfitting(reading: Reading) -> list[Finding]:
    lines, held, train = evaluations(reading)
    if len(held) < 3 or reading.level > reading.first_loss:  # a loss that ran away is another matter
        return []
    if apart(reading):
        return []  # it was away before any row came twice: that is nothing learnt by heart
    low = int(held.argmin())
    rise = float(np.median(held[-min(2, len(held)) :]) - held[low])
    falls = train[low] - train[-1]
    noise = spread(np.diff(held[: low + 1])) if low > 3 else 0.0
    if low == len(held) - 1 or rise < TURNED * held[low] or rise < noise or falls < TURNED * train[low]:
        return []
    epoch = reading.column("epoch")[lines[-1]]
    return [
        reading.finding(
            int(lines[low]),
            name="overfitting",
            stage="eval",
            symptom="evaluation rises while training falls",
            evidence=f"evaluation lowest with {held[low]:.3f} nats, {held[-1]:.3f} at the end; "
            f"training {train[low]:.3f} then {train[-1]:.3f}" + (f"; epoch {epoch:.0f}" if np.isfinite(epoch) else ""),
            cause="too little text for this model and this many updates",
            checks=(
                "keep the weights of the lowest evaluation",
                "more and more varied data; does the data repeat a few rows?",
                "dropout and weight decay",
                "a smaller model, fewer updates",
            ),
        )
    ]


def very_low(reading: Reading) -> list[Finding]:
    """A loss next to 0: learnt by heart, or seen beforehand."""
    low = np.flatnonzero(reading.smooth <= TOO_GOOD * reading.first_loss)
    if not len(low) or reading.level > TOO_GOOD * reading.first_loss:
        return []
    line = reading.lines_of(int(low[0]))
    _, held, _ = evaluations(reading)
    epoch = reading.column("epoch")[line]
    numbers = f"{reading.first_loss:.3g} nats at first, {reading.level:.3g} at the end"
    numbers += f"; evaluation {held[-1]:.3g}" if len(held) else "; no evaluation"
    numbers += f"; epoch {epoch:.0f} when it was reached" if np.isfinite(epoch) else ""
    leak = held[-1] <= 2 * TOO_GOOD * reading.first_loss if len(held) else np.isfinite(epoch) and epoch == 0
    if leak or reading.first_loss == 0:
        return [
            reading.finding(
                line,
                name="too good to be true",
                stage="eval",
                symptom="the loss is lower than text allows, on text that was never seen",
                evidence=numbers,
                cause="the answer can be seen: a mask that lets the future through, labels that are not shifted, or "
                "evaluation rows that are in the training text",
                checks=(
                    PREFLIGHT,
                    "do labels equal input_ids? Each must be the token after",
                    "sample from the model: a leak writes rubbish",
                    "search the evaluation text for rows of the training text",
                ),
            )
        ]
    return [
        reading.finding(
            line,
            name="memorising",
            stage="eval",
            symptom="the training loss goes towards 0",
            evidence=numbers,
            cause="few rows that come again and again are learnt by heart" + ("" if len(held) else "; or a leak"),
            checks=(
                "count the rows that differ, and the epochs",
                "evaluate on held-out text",
                f"if no row came twice: {PREFLIGHT}",
            ),
        )
    ]
