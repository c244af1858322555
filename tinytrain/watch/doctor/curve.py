"""The shape of the loss: where it starts, whether it moves."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import BAND, LARGEST_LN_V, NotSeenError, Reading

CURVE = 40
"""updates that a shape needs: ten for each quarter, so that one batch decides nothing"""
MOVED = 0.03
"""share of the first loss that a run must win. From first weights the healthy runs win 0.4 or more in 150 updates"""
STUCK = 0.02
"""share of the loss that it must still win between a quarter of the run and its end. 346 healthy runs win 0.0225 or
more, 16 on shuffled labels between -0.015 and 0.0155"""
FREQUENCIES = 0.5
"""share of the first loss. A model that knows how frequent tokens are, and nothing more, stays above: the bytes of the
three texts here have entropies of 0.59, 0.60 and 0.71 ln 256"""
CLIPPED = 1e-4
"""what the gradient is multiplied by, as a median, where clipping leaves nothing. A run with norms of 8 to 25 and a
limit of 1 has 0.04 to 0.12, and trains well; AdamW does not even notice 1e-3"""


def initial(reading: Reading) -> Finding | None:
    if reading.at(int(reading.made[0])) > 1:
        raise NotSeenError("the log does not hold the first update")
    first, ln_v = reading.first_loss, reading.ln_v
    if (abs(first - ln_v) <= BAND) if ln_v is not None else (first <= LARGEST_LN_V):
        return None
    known = f"ln V = {ln_v:.2f}" if ln_v is not None else f"ln V of the largest vocabularies is {LARGEST_LN_V}"
    low = {
        "symptom": "the first loss is far below that of a model that knows nothing",
        "cause": "it knows too much: pretrained weights, or a leak",
    }
    told = low if ln_v is not None and first < ln_v else {}
    return reading.finding(int(reading.made[0]), "initial loss", f"{first:.2f} nats; {known}", **told)


def clipped(reading: Reading) -> Finding | None:
    factor = reading.column("clip_factor")[reading.made]
    factor = factor[np.isfinite(factor)]
    if np.median(factor) >= CLIPPED or won(reading) >= 0.25:
        return None
    norm = reading.column("grad_norm")[reading.made]
    norm = norm[np.isfinite(norm)]
    evidence = f"multiplied by {np.median(factor):.3g} in the median; "
    evidence += f"norm before it {np.median(norm):.3g}; " if len(norm) else ""
    return reading.finding(int(reading.made[0]), "gradients clipped away", f"{evidence}the loss won {won(reading):.1%}")


def hardly_moves(reading: Reading) -> Finding | None:
    _from_first_weights(reading)
    if len(reading.made) - reading.rising() < CURVE:
        raise NotSeenError(f"fewer than {CURVE} updates behind the warmup")
    if won(reading) >= MOVED or reading.level > reading.first_loss * (1 + MOVED):
        return None  # or it moved upwards: that is another finding
    lr = reading.column("lr")
    rate = f"; learning rate up to {np.nanmax(lr):.3g}" if np.isfinite(lr).any() else ""
    evidence = f"{reading.first_loss:.3f} nats at first, {reading.level:.3f} at the end of {len(reading.made)} updates"
    return reading.finding(int(reading.made[0]), "loss hardly moves", evidence + rate)


def stuck(reading: Reading) -> Finding | None:
    """A loss that fell to that of the tokens' frequencies, and stayed there. Below that it may have converged."""
    _from_first_weights(reading)
    n = len(reading.loss)
    early = float(np.median(reading.loss[n // 5 : 3 * n // 10]))
    late = float(np.median(reading.loss[-(n // 10) :]))
    if reading.rising() > n // 5:
        raise NotSeenError("the warmup takes more than a fifth of the log")
    if won(reading) < MOVED or late < FREQUENCIES * reading.first_loss or early <= 0:
        return None
    if (early - late) / early >= STUCK or late > 1.1 * early:
        return None
    evidence = f"{early:.3f} nats after a quarter of the run, {late:.3f} at its end ({(late - early) / early:+.1%})"
    return reading.finding(int(reading.made[n // 5]), "loss stuck", evidence)


def _from_first_weights(reading: Reading) -> None:
    if reading.is_sweep():
        raise NotSeenError("the learning rate is a sweep")
    if not reading.from_start():
        raise NotSeenError("the log begins late")
    if not reading.knew_nothing():
        raise NotSeenError(f"the first loss of {reading.first_loss:.3g} is not that of a model that knows nothing")


def won(reading: Reading) -> float:
    """Share of the first loss that the run has won."""
    return (reading.first_loss - reading.level) / reading.first_loss if reading.first_loss > 0 else 0.0
