"""Whether a model can tell one order of its past from another."""

from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import as_before
from tinytrain.watch.preflight.subject import NotTestedError, Subject, largest, other_tokens

ORDER_SHARE = 1e-3  # of what other tokens move; measured 0.4 to 1.5 where order shows, and rounding where not


def order_line(subject: Subject) -> Line:
    """The last position's logits, after the same past tokens in another order."""
    name, ids = "order matters", subject.rows(1)
    past = ids[:, :-1]
    if ids.shape[1] < 3 or bool((past.flip(1) == past).all()):
        raise NotTestedError("the batch has no row of which the order could change")
    turned, others = ids.clone(), ids.clone()
    turned[:, :-1], others[:, :-1] = past.flip(1), other_tokens(past)
    with as_before(subject.model, "eval") as draw_again:
        before = subject.ask(ids)[:, -1]
        draw_again()
        order = largest(subject.ask(turned)[:, -1] - before)
        draw_again()
        tokens = largest(subject.ask(others)[:, -1] - before)
    if tokens <= subject.tolerance * 0.1 * largest(before):
        raise NotTestedError("no token moves the logits of another position yet")
    return Line(
        name,
        order > ORDER_SHARE * tokens,
        f"the past in reverse moves the last logits by {order:.3g}, another past by {tokens:.3g}",
        "The model sees which tokens came, and not in which order: are the positions added, and do they count?",
    )
