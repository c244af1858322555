"""The weights that the loss reaches: all, no stranger, and experts that this batch does not choose."""

import pytest
import torch
from preflight_honest import Recomputed, mixture
from preflight_models import CALLS, GRADIENT, OVERFIT, SHAPES, Plain, rows

from tinytrain.watch.preflight import preflight
from tinytrain.watch.preflight.reach import gradient_line
from tinytrain.watch.preflight.subject import subject_of


class InAList(Plain):
    """Its projections are where torch does not look."""

    def finish(self):
        parts = list(self.narrow)
        del self.narrow
        self.narrow = parts


class Bare(Plain):
    def finish(self):
        del self.positions
        self.table = (0.02 * torch.randn(64, self.head.in_features)).requires_grad_()

    def embed(self, input_ids, attention_mask):
        return self.tokens(input_ids) + self.table[: input_ids.shape[1]]


class Buffer(Bare):
    def finish(self):
        super().finish()
        table = self.table
        del self.table
        self.register_buffer("table", table)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(InAList, "narrow[0].weight"), (Bare, "has them: table"), (Buffer, "table (a buffer)")],
)
def test_what_is_trained_by_nobody_is_named(kind, said):
    line = preflight(kind(), rows())[GRADIENT]
    assert line.passed is False and "not registered" in line.measured and said in line.measured
    assert "nn.ModuleList" in line.advice


def test_a_leaf_that_each_call_makes_anew_is_no_weight():
    class Leaf(Plain):
        """As Hugging Face does it for adapters: the frozen table's answer asks for a gradient."""

        def finish(self):
            self.tokens.requires_grad_(False)
            self.positions.requires_grad_(False)

        def embed(self, input_ids, attention_mask):
            return super().embed(input_ids, attention_mask).requires_grad_()

    line = preflight(Leaf(), rows())[GRADIENT]
    assert line.passed and "frozen: tokens.weight" in line.measured


def test_experts_that_no_token_chooses_are_told_from_a_layer_that_is_never_used():
    for seed in range(4):
        torch.manual_seed(seed)
        line = gradient_line(subject_of(mixture(32)(), rows(), None, None))
        assert line.passed and "chosen by no token of this batch, but by others: experts." in line.measured

    class Skips(Plain):
        def block(self, i, x, allowed):
            return x if i == 1 else super().block(i, x, allowed)

    line = preflight(Skips(), rows())[GRADIENT]
    assert line.passed is False and "none at all: norms.2.weight" in line.measured


def test_old_checkpointing_gets_every_line_and_gradients_stay_as_they_were():
    torch.manual_seed(0)
    model = Recomputed()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    kept = model.head.weight.grad
    report = preflight(model, rows())
    assert {report[name].passed for name in (SHAPES, CALLS, GRADIENT, OVERFIT)} == {True}, str(report)
    assert model.head.weight.grad is kept and (kept == 1).all() and model.tokens.weight.grad is None


def test_hooks_that_step_an_optimizer_are_not_called():
    called = []
    model = Recomputed()
    model.head.weight.register_post_accumulate_grad_hook(called.append)
    line = preflight(model, rows())[GRADIENT]
    assert line.passed is None and "use_reentrant" in line.measured and not called


def test_a_model_in_which_nothing_is_trainable_fails():
    line = preflight(Plain().requires_grad_(False), rows())[GRADIENT]
    assert line.passed is False and "nothing is trainable; frozen: tokens.weight" in line.measured
