import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tinytrain.course.handwritten import MendedLM, NextTokenLM, SmallLM
from tinytrain.model import GPT, PRESETS
from tinytrain.watch.preflight import Line, Report, future_leak, influence, preflight

V, T = 97, 16
FOUR_WAYS = [
    f"no future leak ({mode}, {mask} padding mask)" for mode in ("train", "eval") for mask in ("without", "with")
]


def small(kind):
    torch.manual_seed(0)
    return kind(V, d_model=32, n_layers=2, n_heads=4, max_positions=T)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, V, (8, T + 1), generator=generator)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def verdicts(report):
    return [report[name].passed for name in FOUR_WAYS]


def test_an_honest_model_passes_every_line(batch):
    torch.manual_seed(0)
    for model in (GPT(PRESETS["nano"]), small(MendedLM)):
        report = preflight(model, batch)
        assert report.passed and verdicts(report) == [True] * 4, str(report)


def test_the_inverted_mask_is_hidden_in_one_situation_and_caught_in_three(batch):
    report = preflight(small(SmallLM), batch)
    assert not report.passed
    assert verdicts(report) == [True, False, False, False]
    assert "not finite" in report[FOUR_WAYS[2]].measured


def test_a_mask_off_by_one_is_caught(batch):
    assert not preflight(small(NextTokenLM), batch).passed


class Plain(nn.Module):
    """Embeds and projects; a test may break it."""

    def __init__(self, std=0.02):
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, 32), nn.Linear(32, V)
        nn.init.normal_(self.head.weight, std=std)

    def forward(self, input_ids):
        return self.head(self.tokens(input_ids).cumsum(1))  # causal: each position sums what it has seen


class MeanOverTime(Plain):
    def forward(self, input_ids):
        x = self.tokens(input_ids)
        return self.head(x - x.mean(1, keepdim=True))


def test_a_model_without_a_padding_mask_is_told_what_was_not_tested(batch):
    torch.manual_seed(0)
    report = preflight(Plain(), batch)
    assert verdicts(report) == [True, None, True, None]
    assert report.failed == ("order matters",), "a sum of what was seen knows no order"
    assert "takes no attention_mask" in str(report)


def test_a_leak_that_has_nothing_to_do_with_attention_is_caught(batch):
    assert verdicts(preflight(MeanOverTime(), batch)) == [False, None, False, None]


class MaskedLM(SmallLM):
    """Whatever mask a test gives it."""

    allowed = staticmethod(lambda T: torch.ones(T, T, dtype=torch.bool).tril())

    def causal_mask(self, T, device):
        return ~self.allowed(T)


def lower(T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def in_chunks(T, size):
    chunk = torch.arange(T) // size
    return lower(T) | (chunk[:, None] == chunk)


LEAKY_MASKS = {
    "both ways within chunks of 4": lambda T: in_chunks(T, 4),
    "both ways within chunks of 8": lambda T: in_chunks(T, 8),
    "both ways within the first 4": lambda T: lower(T) | ((torch.arange(T)[:, None] < 4) & (torch.arange(T) < 4)),
    "2 sees 3, across no cut": lambda T: lower(T) | ((torch.arange(T)[:, None] == 2) & (torch.arange(T) == 3)),
    "both ways within the second half": lambda T: (
        lower(T) | ((torch.arange(T)[:, None] >= T // 2) & (torch.arange(T) >= T // 2))
    ),
}


@pytest.mark.parametrize("kind", LEAKY_MASKS)
def test_a_mask_that_leaks_in_places_only_is_caught(kind, batch):
    model = small(MaskedLM)
    model.allowed = LEAKY_MASKS[kind]
    assert preflight(model, batch)["no future leak (train, with padding mask)"].passed is False


def test_a_leak_is_judged_by_what_the_past_moves_so_small_weights_hide_nothing(batch):
    model = small(NextTokenLM)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.05)
    assert preflight(model, batch)["no future leak (train, with padding mask)"].passed is False


def test_a_model_whose_attention_does_nothing_yet_is_judged_by_what_it_will_do(batch):
    model = small(NextTokenLM)
    with torch.no_grad():
        for layer in model.encoder.layers:
            layer.self_attn.out_proj.weight.zero_()
            layer.linear2.weight.zero_()
    report = preflight(model, batch)
    assert verdicts(report) == [True, False, False, False], "its mask is off by one where it has one"
    assert "moved off zero: encoder.layers.0.self_attn.out_proj.weight" in str(report)
    assert not model.encoder.layers[0].self_attn.out_proj.weight.any()


@pytest.mark.parametrize("where", [(70, 120), (64, 128)])
def test_a_leak_behind_the_place_where_the_batch_is_cut_is_caught(where):
    ids = torch.randint(0, V, (4, 129), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    torch.manual_seed(0)
    model = MaskedLM(V, d_model=32, n_layers=2, n_heads=4, max_positions=128)
    assert verdicts(preflight(model, batch)) == [True] * 4

    def allowed(T):
        place = torch.arange(T)
        inside = (place >= where[0]) & (place < where[1])
        return lower(T) | (inside[:, None] & inside)

    model.allowed = allowed
    line = preflight(model, batch)["no future leak (train, with padding mask)"]
    assert line.passed is False and "in a row of 128 tokens" in line.measured


def test_dropout_is_no_leak(batch):
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["nano"], dropout=0.3))
    assert verdicts(preflight(model, batch)) == [True] * 4


def test_a_model_that_never_answers_twice_alike_is_not_judged(batch):
    class Restless(Plain):
        calls = 0

        def forward(self, input_ids):
            self.calls += 1
            return super().forward(input_ids) * self.calls

    assert verdicts(preflight(Restless(), batch)) == [None] * 4


def test_draws_from_pythons_and_numpys_generators_are_no_leak(batch):
    class Noisy(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids) * (1 + random.random() + np.random.random())

    assert verdicts(preflight(Noisy(), batch)) == [True, None, True, None]


def test_a_batch_whose_first_rows_have_no_target_is_judged_by_the_others(batch):
    labels = batch["labels"].clone()
    labels[:7] = -100
    assert "on 16 tokens" in preflight(small(MendedLM), {**batch, "labels": labels})["initial loss"].measured
    line = preflight(small(MendedLM), {**batch, "labels": torch.full_like(labels, -100)})["initial loss"]
    assert line.passed is None and "no position of this batch is a target" in line.measured


def test_a_loss_that_starts_too_low_is_caught(batch):
    class Knowing(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids) + 5.0 * torch.nn.functional.one_hot(batch["labels"][: len(input_ids)], V)

    assert preflight(Knowing(), batch)["initial loss"].passed is False


def test_a_model_that_cannot_be_called_gets_one_line_with_its_own_error(batch):
    class Broken(Plain):
        def forward(self, input_ids):
            raise RuntimeError("no such device")

    report = preflight(Broken(), batch)
    assert [(line.name, line.passed) for line in report.lines] == [("shapes and dtypes", False)]
    assert "RuntimeError: no such device" in str(report)


def test_a_notebook_gets_a_table_with_words_beside_the_colours_and_nothing_unescaped():
    report = Report((Line("a", True, "1 < 2"), Line("b", False, "2", "mend <it>"), Line("c", None, "why")))
    html = report._repr_html_()
    assert all(f">{word}</b>" in html for word in ("pass", "FAIL", "----"))
    assert "1 &lt; 2" in html and "mend &lt;it&gt;" in html and html.count("<tr>") == 4
    assert report.failed == ("b",) and str(report).splitlines()[1:3] == ["FAIL  b: 2", "      mend <it>"]


def test_a_buffer_that_the_model_replaces_is_put_back(batch):
    class Counting(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("ema", torch.ones(1))
            self.register_buffer("seen", None)

        def forward(self, input_ids):
            self.ema = self.ema * 0.9
            self.seen = torch.ones(1)
            return super().forward(input_ids)

    model = Counting()
    ema = model.ema
    preflight(model, batch)
    assert model.ema is ema and model.ema.item() == 1.0 and model.seen is None


def test_weights_that_start_too_large_are_caught(batch):
    line = preflight(Plain(std=2.0), batch)["initial loss"]
    assert line.passed is False and "initial scale" in line.advice


def test_it_leaves_modes_buffers_weights_and_generators_as_they_were(batch):
    model = nn.Sequential(nn.Embedding(V, 8), Transposed(nn.BatchNorm1d(8)), nn.Dropout(0.5), nn.Linear(8, V))
    model[2].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes, generator = [module.training for module in model.modules()], torch.get_rng_state()
    with Forwarding(model) as wrapped:
        preflight(wrapped, batch)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


class Transposed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Forwarding(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids):
        return self.inner(input_ids)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        return None


def test_the_leak_is_a_number_that_can_be_checked_on_paper():
    class SumOfLater(nn.Module):
        def forward(self, input_ids):
            later = input_ids.flip(1).cumsum(1).flip(1).float()  # logits at t: the sum of the tokens from t on
            return later[..., None].expand(*input_ids.shape, V)

    # Of the tokens 0 and 1 each becomes the other. All tokens but the first changed, the sum at position 0 is 3, not 0.
    assert future_leak(SumOfLater(), torch.tensor([[1, 0, 0, 0]])) == 3.0


def test_constant_rows_are_changed_too():
    assert future_leak(MeanOverTime(), torch.zeros(2, 8, dtype=torch.long)) > 0


def test_influence_is_lower_triangular_for_a_causal_model_and_upper_for_the_inverted_one(batch):
    row, mask = batch["input_ids"][:1], torch.ones(1, T)
    honest = influence(small(MendedLM), row, mode="train", attention_mask=mask)
    leaking = influence(small(SmallLM), row, mode="train", attention_mask=mask)
    assert torch.equal(honest.triu(1), torch.zeros(T, T)) and (honest.tril() > 0).sum() == T * (T + 1) / 2
    assert torch.equal(leaking.tril(-1), torch.zeros(T, T)) and (leaking.triu() > 0).sum() == T * (T + 1) / 2


def test_what_cannot_be_measured_is_refused(batch):
    model = small(MendedLM)
    with pytest.raises(ValueError, match=r"shape \[8, 1\]; a leak needs rows of two"):
        future_leak(model, batch["input_ids"][:, :1])
    with pytest.raises(ValueError, match="mode='both'"):
        future_leak(model, batch["input_ids"], mode="both")
    with pytest.raises(ValueError, match="measured on one row"):
        influence(model, batch["input_ids"])
    with pytest.raises(KeyError, match="'nothing' is not a line of this report: shapes and dtypes, weights"):
        preflight(model, batch)["nothing"]


def test_nan_logits_are_a_leak_of_nan(batch):
    assert math.isnan(future_leak(small(SmallLM), batch["input_ids"], mode="eval"))
