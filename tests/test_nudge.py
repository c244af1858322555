"""What starts at zero hides nothing, and no line passes whose probe moves nothing."""

import pytest
import torch
from preflight_broken import detached_residual
from preflight_models import FOUR, LEFT, ORDER, RIGHT, ROWS, SLOPE, D, Plain, V, at_the_end, rows, variant
from torch import nn

from tinytrain.watch.preflight import preflight
from tinytrain.watch.preflight.nudge import nudged
from tinytrain.watch.preflight.subject import subject_of

EVERYONE = variant(mask=lambda s, T: torch.ones(T, T, dtype=torch.bool))
IGNORED = variant(allowed=lambda s, T, attention_mask: s.mask(T)[None, None])


class Mixed(Plain):
    def answer(self, x):
        return self.head(x - x.mean((0, 1), keepdim=True))


class Gated(EVERYONE):
    """Each block starts as nothing: its gate is a vector of zeros."""

    def finish(self):
        self.gate = nn.Parameter(torch.zeros(D))

    def block(self, i, x, allowed):
        return x + self.gate * (super().block(i, x, allowed) - x)


def zero_head(kind):
    class Zero(kind):
        def finish(self):
            super().finish()
            nn.init.zeros_(self.head.weight)

    torch.manual_seed(0)
    return Zero()


@pytest.mark.parametrize(
    ("kind", "names"),
    [(EVERYONE, FOUR), (Gated, FOUR), (Mixed, (ROWS, FOUR[0], RIGHT)), (IGNORED, (LEFT,))],
)
def test_a_head_that_starts_at_zero_hides_no_fault(kind, names):
    model = zero_head(kind)
    report = preflight(model, rows())
    assert set(names) <= set(report.failed), str(report)
    assert "moved off zero: head.weight" in report[names[0]].measured
    assert not model.head.weight.any()


def test_a_cut_path_shows_behind_a_head_that_starts_at_zero():
    assert preflight(zero_head(variant(block=detached_residual)), rows())[SLOPE].passed is False


def test_a_gate_that_starts_at_zero_hides_no_leak():
    torch.manual_seed(0)
    report = preflight(Gated(), rows())
    assert set(FOUR) <= set(report.failed) and "moved off zero: gate" in report[FOUR[0]].measured


def test_a_block_that_starts_at_zero_hides_no_leak_while_another_one_moves_logits():
    class First(Plain):
        """Its first block sees everyone, and adds nothing yet."""

        def finish(self):
            nn.init.zeros_(self.out[0].weight)

        def attend(self, i, x, allowed):
            return super().attend(i, x, allowed if i == 1 else torch.ones_like(allowed))

    torch.manual_seed(0)
    report = preflight(First(), rows())
    assert set(FOUR) <= set(report.failed) and "moved off zero: out.0.weight" in report[FOUR[0]].measured


def test_zero_biases_are_left_alone_where_tokens_move_logits():
    subject = subject_of(at_the_end(lambda s: nn.init.zeros_(s.out[0].bias))(), rows(), None, None)
    with nudged(subject) as names:
        assert names == [] and not subject.model.out[0].bias.any()


def test_no_line_passes_whose_probe_cannot_move():
    class Deaf(nn.Module):
        """The same scores whatever the tokens are."""

        def __init__(self):
            super().__init__()
            self.scores = nn.Parameter(torch.randn(V))

        def forward(self, input_ids, attention_mask=None, doc_ids=None):
            return self.scores.expand(*input_ids.shape, V)

    class Alone(Plain):
        """Each token for itself."""

        def block(self, i, x, allowed):
            return x + self.feed(i, x)

        def forward(self, input_ids, attention_mask=None, doc_ids=None):
            return super().forward(input_ids, attention_mask)

    documents = "packed documents are strangers"
    report = preflight(Deaf(), rows())
    assert {report[name].passed for name in (*FOUR, ORDER, ROWS, RIGHT, LEFT, documents)} == {None}, str(report)
    report = preflight(Alone(), rows())
    assert {report[name].passed for name in (*FOUR, ORDER, RIGHT, documents)} == {None}, str(report)
    assert report[ROWS].passed
