"""A few dozen updates on one batch must lower its loss."""

import math

from tinytrain.watch.preflight.gradients import descend, trainable, weights_back
from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import as_before
from tinytrain.watch.preflight.subject import NotTestedError, Subject

STEPS = 40
LEARNING_RATES = (3e-3, 1e-2, 5e-4)  # the later ones only where those before do not lower the loss
CLEARLY = 0.8  # of the initial loss; measured at 3e-3: 0.001 to 0.4 for transformers up to 27m, 0.68 for a small LSTM


def overfit_line(subject: Subject) -> Line:
    """The weights are put back. Costs as many updates as it makes."""
    name = "one batch can be overfitted"
    subject.need_full_width()
    if not trainable(subject.model):
        raise NotTestedError("nothing is trainable")
    for lr in LEARNING_RATES:
        with as_before(subject.model, "train") as draw_again, weights_back(subject.model):
            losses = descend(subject, lr, STEPS, draw_again)
        if not math.isfinite(losses[0]):
            raise NotTestedError("the loss is not finite in train mode")
        start, end = losses[0], losses[-1]
        fine = math.isfinite(end) and end < CLEARLY * start
        if fine:
            break
    said = f"{start:.3f} nats before, {end:.3f} after {len(losses) - 1} updates at lr {lr:g}"
    cure = "What cannot learn 128 tokens by heart cannot learn: look at the gradients, the initial scale, the labels."
    return Line(name, fine, said, cure)
