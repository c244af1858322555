"""The same question, the same answer: nothing is left over from a call, and chance is for training only."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tinytrain.watch.preflight.gradients import gradients_of, trainable
from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import MODES, as_before, equal
from tinytrain.watch.preflight.subject import Subject, first_line, largest, other_tokens


def same_call_line(subject: Subject) -> Line:
    """Called, called on other tokens, called again: the first answer stands, and comes again."""
    name, ids = "the same call twice", subject.rows()
    for mode in MODES:
        with as_before(subject.model, mode) as draw_again:
            first = subject.call({"input_ids": ids})
            kept = first.detach().clone()
            draw_again()
            try:
                subject.call({"input_ids": other_tokens(ids)})
                after = first.detach().clone()  # before a third call can write the first one's answer again
                draw_again()
                third = subject.call({"input_ids": ids}).detach()
            except Exception as error:
                return Line(name, False, f"a second call raises {first_line(error)} ({mode} mode)", _LEFT_OVER)
            if not equal(after, kept):
                said = f"the second call changed the first one's logits by {largest(after - kept):.3g}"
                return Line(name, False, f"{said} ({mode} mode)", "A buffer is written over: return a new tensor.")
            if not equal(third, kept):
                moved = largest(third - kept) if third.shape == kept.shape else float("inf")
                return Line(name, False, f"asked again, logits differ by {moved:.3g} ({mode} mode)", _LEFT_OVER)
            if mode == "train" and (error := _backward_fault(subject, ids, draw_again)):
                cure = "A tensor that backward needs is written over by the second call."
                return Line(name, False, f"backward after two calls raises {error}", cure)
    return Line(name, True, "bit-identical in train and eval mode, with other tokens in between")


def _backward_fault(subject: Subject, ids: Tensor, draw_again: Callable[[], None]) -> str | None:
    def both() -> Tensor:
        total = torch.zeros((), device=ids.device)
        for tokens in (ids, other_tokens(ids)):
            draw_again()
            total = total + subject.call({"input_ids": tokens}).float().sum()
        return total

    try:
        gradients_of(both, list(trainable(subject.model).values()))
    except RuntimeError as error:
        return first_line(error)
    return None


_LEFT_OVER = "Something is left over from a call: a cache of keys and values, a counter, a state that is not reset."


def dropout_line(subject: Subject) -> Line:
    """Two calls in eval mode, without giving the generators back in between."""
    name, ids = "dropout off in eval", subject.rows()
    moved = {}
    for mode in ("eval", "train"):
        with as_before(subject.model, mode):
            first, second = (subject.ask(ids) for _ in range(2))
            moved[mode] = largest(first - second)
    rates = {m.p for m in subject.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0}
    said = f"two eval calls differ by {moved['eval']:.3g}, two train calls by {moved['train']:.3g}"
    if moved["eval"]:
        subject.noisy = True
        cure = "Chance is on in eval mode: F.dropout(x, p) needs training=self.training; prefer nn.Dropout."
        return Line(name, False, said, cure)
    if rates and not moved["train"]:
        rate = ", ".join(f"{rate:g}" for rate in sorted(rates))
        return Line(name, None, f"dropout of {rate} is set and moves nothing in train mode: is it ever called?")
    return Line(name, True, said)
