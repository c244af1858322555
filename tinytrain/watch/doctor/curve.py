"""The shape of the loss: where it starts, whether it moves."""

import math

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import Reading

LARGEST_LN_V = 12.6
"""nats: ln 300,000, more tokens than today's vocabularies have. A model that knows nothing starts at ln V"""
BAND = 0.5
"""nats around ln V in which a fresh model starts; torch's default initialisation lies up to 0.4 above"""
MOVED = 0.03
"""share of the first loss that a run must win. From first weights the healthy runs win 0.4 or more in 150 updates"""
STUCK = 0.02
"""share of the loss that it must still win between a quarter of the run and its end. The healthy runs win 0.05 or more,
those on shuffled labels between -0.01 and 0.015"""
CLIPPED = 1e-4
"""what the gradient is multiplied by, as a median, where clipping leaves nothing. A run with norms of 8 to 25 and a
limit of 1 has 0.04 to 0.12, and trains well; AdamW does not even notice 1e-3"""

PREFLIGHT = "run preflight: mask, labels, decay groups and gradients of each parameter"


def initial(reading: Reading, vocab_size: int | None) -> list[Finding]:
    if reading.made[0] > 0 or reading.at(0) > 1:
        return []  # the log does not hold the first update, or it was not made: what came before it was learnt
    first = float(reading.loss[0])
    ln_v = math.log(vocab_size) if vocab_size else None
    if (abs(first - ln_v) <= BAND) if ln_v is not None else (first <= LARGEST_LN_V):
        return []
    known = f"ln V = {ln_v:.2f}" if ln_v is not None else f"ln V of the largest vocabularies is {LARGEST_LN_V}"
    low = ln_v is not None and first < ln_v
    return [
        reading.finding(
            int(reading.made[0]),
            name="initial loss",
            stage="input",
            symptom=f"the first loss is far {'below' if low else 'above'} that of a model that knows nothing",
            evidence=f"{first:.2f} nats; {known}",
            cause="it knows too much: pretrained weights, or a leak" if low else "first weights that are too large",
            checks=(
                "the standard deviation of embeddings and head at the start; 0.02 is usual",
                "residual outputs scaled by 1/sqrt(2 * layers)",
                PREFLIGHT,
            ),
        )
    ]


def clipped(reading: Reading) -> list[Finding]:
    factor = reading.column("clip_factor")[reading.made]
    factor = factor[np.isfinite(factor)]
    if not len(factor) or np.median(factor) >= CLIPPED or won(reading) >= 0.25:
        return []
    return [
        reading.finding(
            int(reading.made[0]),
            name="gradients clipped away",
            stage="input",
            symptom="clipping leaves next to nothing of the gradient",
            evidence=f"multiplied by {np.median(factor):.3g} in the median; norm before it "
            f"{np.median(reading.column('grad_norm')[reading.made]):.3g}; the loss won {won(reading):.1%}",
            cause="max_grad_norm is far below the norm",
            checks=(
                "set max_grad_norm to 1",
                "in FP16: are the gradients unscaled before they are clipped?",
                "read the norm with a limit of 1e10 for a while",
            ),
        )
    ]


def hardly_moves(reading: Reading) -> list[Finding]:
    if reading.rising() == reading.n or reading.first_loss == 0 or won(reading) >= MOVED or reading.is_sweep():
        return []
    if reading.level > reading.first_loss * (1 + MOVED):
        return []  # it moved, upwards: that is another finding
    lr = reading.column("lr")
    rate = f"; learning rate up to {np.nanmax(lr):.3g}" if np.isfinite(lr).any() else ""
    return [
        reading.finding(
            int(reading.made[0]),
            name="loss hardly moves",
            stage="shape",
            symptom="the loss is where it began",
            evidence=f"{reading.first_loss:.3f} nats at first, {reading.level:.3f} at the end of "
            f"{len(reading.made)} updates{rate}",
            cause="a learning rate far too small, gradients clipped or cut off, or a decay as fast as the learning",
            checks=(
                "is grad_norm above 0, and clip_factor not next to 0?",
                "try a learning rate 10 and 100 times as large",
                "are labels -100 (ignore_index) where they should not be?",
                f"lower weight_decay; {PREFLIGHT}",
            ),
        )
    ]


def stuck(reading: Reading) -> list[Finding]:
    n = len(reading.loss)
    early = float(np.median(reading.loss[n // 5 : 3 * n // 10]))
    late = float(np.median(reading.loss[-(n // 10) :]))
    if reading.rising() > n // 5 or reading.is_sweep() or won(reading) < MOVED or late < 0.15 * reading.first_loss:
        return []
    if (early - late) / early >= STUCK or late > 1.1 * early:
        return []
    return [
        reading.finding(
            int(reading.made[n // 5]),
            name="loss stuck",
            stage="shape",
            symptom="the loss fell at first, and has not moved since",
            evidence=f"{early:.3f} nats after a quarter of the run, {late:.3f} at its end "
            f"({(late - early) / early:+.1%})",
            cause="the model learns how frequent tokens are and nothing more: labels that do not belong to their "
            "inputs, a mask that hides the past, a decay or learning rate far too large",
            checks=(
                "decode one row of inputs and labels and read them side by side",
                "try a tenth of the learning rate, then weight_decay 0.1",
                PREFLIGHT,
                "if it is as good as such a model gets, this is no fault",
            ),
        )
    ]


def won(reading: Reading) -> float:
    """Share of the first loss that the run has won."""
    return (reading.first_loss - reading.level) / reading.first_loss if reading.first_loss > 0 else 0.0
