import math

import pytest
import torch
import torch.nn.functional as F

import tinytrain.loss
from tinytrain.loss import count_targets, cross_entropy


@pytest.fixture
def logits_and_labels():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5), generator=generator)
    labels[0, 3:] = -100
    return logits, labels


def test_mean_equals_torchs_own_cross_entropy(logits_and_labels):
    logits, labels = logits_and_labels
    torchs = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert cross_entropy(logits, labels).item() == pytest.approx(torchs.item(), rel=1e-6)


def test_sum_over_count_is_mean_and_none_keeps_the_shape(logits_and_labels):
    logits, labels = logits_and_labels
    each = cross_entropy(logits, labels, reduction="none")
    assert each.shape == labels.shape
    assert (each[labels == -100] == 0).all()
    total = cross_entropy(logits, labels, reduction="sum")
    assert each.sum().item() == pytest.approx(total.item(), rel=1e-6)
    assert (total / count_targets(labels)).item() == pytest.approx(cross_entropy(logits, labels).item(), rel=1e-6)


def test_no_target_gives_zero_loss_and_zero_gradient_where_torch_gives_nan(logits_and_labels):
    logits, labels = logits_and_labels
    nothing = torch.full_like(labels, -100)
    assert math.isnan(F.cross_entropy(logits.flatten(0, 1), nothing.flatten()).item())
    loss = cross_entropy(logits, nothing)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad.abs().max().item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_widened_before_the_sum(dtype):
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(1)).to(dtype)
    labels = torch.arange(4)
    loss = cross_entropy(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == F.cross_entropy(logits.float(), labels).item()


def test_float64_stays_float64():
    assert cross_entropy(torch.zeros(1, 4, dtype=torch.float64), torch.tensor([1])).dtype == torch.float64


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("label", [-4, -1, 5])
def test_a_label_outside_the_vocabulary_is_named(label, reduction):
    labels = torch.tensor([[0, 1], [label, -100]])
    with pytest.raises(ValueError, match=rf"label {label} at position \[1, 0\] is outside the vocabulary 0\.\.4"):
        cross_entropy(torch.zeros(2, 2, 5), labels, reduction=reduction)


def test_an_explicit_ignore_index_is_honoured():
    labels = torch.tensor([2, -1])
    assert cross_entropy(torch.zeros(2, 5), labels, ignore_index=-1).item() == pytest.approx(math.log(5))
    assert count_targets(labels, ignore_index=-1).item() == 1


def test_a_bad_label_is_not_taken_for_a_mark_of_ones_own():
    words = r"label 9 at position \[1\] .* carry -1: .* 1 labels are outside in all"
    with pytest.raises(ValueError, match=words):
        cross_entropy(torch.zeros(2, 5), torch.tensor([-1, 9]), ignore_index=-1)


def test_labels_are_looked_at_beforehand_off_the_cpu_alone(monkeypatch):
    """There a bad label is an error that comes late and without a name; on a CPU looking twice would only take time."""
    calls = []
    monkeypatch.setattr(tinytrain.loss, "check_labels", lambda *call: calls.append(call))
    logits, labels = torch.zeros(1, 2, 5), torch.zeros(1, 2, dtype=torch.long)
    cross_entropy(logits, labels)
    assert not calls
    away = labels.to("meta")  # a device that is no CPU and that every machine has
    cross_entropy(logits.to("meta"), away, ignore_index=-1)
    assert calls == [(away, 5, -1)]


def test_an_error_that_no_label_has_made_goes_through(monkeypatch):
    def broken(*_):
        raise IndexError("of something else")

    monkeypatch.setattr(tinytrain.loss, "_token_losses", broken)
    with pytest.raises(IndexError, match="of something else"):
        cross_entropy(torch.zeros(2, 5), torch.zeros(2, dtype=torch.long))


def test_label_smoothing_leaves_ignored_rows_out_of_the_uniform_part():
    logits = torch.tensor([[2.0, 0, 0, 0], [0, 0, 0, 9.0]])
    assert cross_entropy(logits, torch.tensor([0, -100]), label_smoothing=0.2).item() == pytest.approx(
        0.640753, abs=1e-6
    )


def test_all_of_the_label_may_be_spread_over_the_classes():
    loss = cross_entropy(torch.tensor([[2.0, 0, 0, 0]]), torch.tensor([0]), label_smoothing=1.0)
    assert loss.item() == pytest.approx(math.log(math.exp(2) + 3) - 0.5)  # the mean of -log p over four classes


@pytest.mark.parametrize(
    ("logits", "labels", "options", "error", "words"),
    [
        (
            torch.zeros(2, 3, 5),
            torch.zeros(2, 4).long(),
            {},
            ValueError,
            r"\[2, 3, 5\] do not fit labels \[2, 4\]: .* one more axis at the end, \[2, 4, 'V'\]$",
        ),
        (torch.zeros(2, 5), torch.zeros(2), {}, TypeError, "torch.float32; they must be integer"),
        (torch.zeros(2, 5), torch.zeros(2).bool(), {}, TypeError, "torch.bool; they must be integer"),
        (
            torch.zeros(2, 5),
            torch.zeros(2).long(),
            {"reduction": "avg"},
            ValueError,
            "='avg' is not one of mean, sum, none",
        ),
        (
            torch.zeros(2, 5),
            torch.zeros(2).long(),
            {"label_smoothing": 1.5},
            ValueError,
            "label_smoothing=1.5",
        ),
    ],
)
def test_a_wrong_call_says_what_is_wrong(logits, labels, options, error, words):
    with pytest.raises(error, match=words):
        cross_entropy(logits, labels, **options)


def test_int32_labels_are_accepted():
    assert cross_entropy(torch.zeros(2, 5), torch.tensor([1, 2], dtype=torch.int32)).item() == pytest.approx(
        math.log(5)
    )


def test_labels_of_a_narrow_type_are_counted_as_those_of_a_wide_one():
    labels = torch.tensor([[156, 7], [3, 156]], dtype=torch.uint8)  # -100 wraps round to 156 there
    logits = torch.randn(2, 2, 200, generator=torch.Generator().manual_seed(0))
    assert count_targets(labels).item() == 4
    assert cross_entropy(logits, labels).item() == cross_entropy(logits, labels.long()).item()
    with pytest.raises(ValueError, match=r"label 156 at position \[0, 0\]"):
        cross_entropy(logits[..., :100], labels)
