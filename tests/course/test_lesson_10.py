import math
from pathlib import Path

import pytest
import torch

from tinytrain.course import lesson_10, sick
from tinytrain.course.gallery_10 import GALLERY, LOOKS
from tinytrain.course.handwritten import MendedLM, SmallLM
from tinytrain.course.lesson_10 import (
    early_share,
    ends,
    final_order,
    first_signs,
    gain,
    jumps,
    loss_without_future,
    lowest,
    model_of,
    over_seeds,
    several,
    steps_to,
    stream,
    train_run,
)
from tinytrain.course.symptoms_10 import R3, R4, shows, symptom_table
from tinytrain.runlog import Run


def run_of(losses, **fields):
    return Run(
        Path("nowhere"), [{"step": i + 1, "batch": i + 1, "loss": loss} | fields for i, loss in enumerate(losses)]
    )


def weights(**settings):
    return {name: p.detach().clone() for name, p in model_of(seed=3, **settings).named_parameters()}


def test_without_residual_scale_only_the_residual_outputs_differ():
    plain, larger = weights(n_layers=3), weights(n_layers=3, residual_scale=False)
    for name, values in plain.items():
        factor = math.sqrt(6) if name.endswith("out.weight") else 1.0
        torch.testing.assert_close(larger[name], factor * values, rtol=1e-6, atol=0)


def test_the_embedding_scale_multiplies_what_enters_and_no_weight():
    plain, scaled = model_of(seed=1), model_of(seed=1, embed_scale=True)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(scaled._embed(ids), math.sqrt(32) * plain._embed(ids))
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), scaled.parameters(), strict=True))


def test_without_norms_a_block_reads_the_stream_as_it_is():
    x = torch.randn(1, 3, 32)
    assert torch.equal(model_of(seed=0, norms=False).blocks[1].attention_norm(x), x)
    assert not torch.equal(model_of(seed=0).blocks[1].attention_norm(x), x)


def test_the_stream_is_measured_behind_each_block_and_leaves_nothing_behind():
    model, ids = model_of(seed=0, n_layers=3), torch.randint(0, 256, (2, 8))
    found = stream(model, ids)
    x = model._embed(ids) + model._embed_positions(torch.arange(8))
    x = model.blocks[0](x, lambda q, k, v, p: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert found["std"][0] == pytest.approx(x.std(-1).mean().item(), rel=1e-5)
    assert len(found["std"]) == len(found["grad"]) == 3
    assert all(p.grad is None for p in model.parameters())
    assert not any(block._forward_hooks for block in model.blocks)


def test_a_run_is_the_same_when_it_is_made_again_and_evaluating_changes_nothing():
    short = {"total_steps": 6, "warmup_steps": 2}
    first, again = train_run(**short), train_run(**short, eval_at=(3,))
    assert first["losses"] == again["losses"] and first["held_out"] == again["held_out"]
    assert list(again["evals"]) == [3] and len(first["grad_norms"]) == 6
    assert train_run(**short, seed=1)["losses"] != first["losses"]


def test_updates_to_a_target_lie_on_the_line_between_two_evaluations(monkeypatch):
    fall = iter([5.0, 4.0, 3.0, 2.0])
    monkeypatch.setattr(lesson_10, "held_out_loss", lambda _model: next(fall))
    assert steps_to(target=3.5, batch_size=1, lr=1e-3, seed=0, most_steps=60) == pytest.approx(40 + 0.5 * 3)


def test_a_target_that_is_not_reached_takes_infinitely_long():
    assert steps_to(target=0.1, batch_size=1, lr=1e-3, seed=0, most_steps=3) == math.inf


def test_jumps_are_relative_to_the_median_of_those_before():
    values = [1.0] * 30 + [4.0] + [1.0] * 10 + [6.0]
    assert jumps(values, times=3, after=20) == [30, 41]
    assert jumps(values, times=5, after=20) == [41]
    assert jumps(values, times=3, after=35) == [41]


def test_several_makes_each_run_once(monkeypatch):
    made = []

    def double(x):
        made.append(x)
        return 2 * x

    monkeypatch.setattr(lesson_10, "_made", {})
    assert several(double, [{"x": 1}, {"x": 2}]) == [2, 4]
    assert several(double, [{"x": 2}, {"x": 3}]) == [4, 6]
    assert made == [1, 2, 3]


def made_of(x, seed):
    return 10 * x + seed


def test_over_seeds_gives_each_arm_its_own_results(monkeypatch):
    monkeypatch.setattr(lesson_10, "_made", {})
    assert over_seeds(made_of, {"a": {"x": 1}, "b": {"x": 2}}, [0, 5]) == {"a": [10, 15], "b": [20, 25]}


def test_pairs_in_their_final_order_are_counted():
    runs = [{"evals": {10: now}, "held_out": end} for now, end in ((1.0, 3.0), (2.0, 2.0), (3.0, 4.0))]
    assert final_order(runs, at=10) == pytest.approx(200 / 3)  # the first two change places, two pairs do not


def test_every_run_of_gallery_and_tables_is_known():
    names = {name for choices in GALLERY.values() for name in choices}
    assert names == set(LOOKS) and names <= set(sick.SICK)
    assert len({choices[0] for choices in GALLERY.values()}) == 10
    assert {name for _, _, name in R3 + R4} <= set(sick.SICK)


def test_symptoms_are_read_from_the_log():
    healthy = run_of([5.5 - 0.02 * i for i in range(100)])
    assert not any(shows(symptom, healthy, healthy) for symptom in ("loss is NaN", "loss hardly moves", R4[0][0]))
    assert shows("loss hardly moves", run_of([5.5] * 100), healthy)
    assert shows("loss is NaN", run_of([math.nan] * 30, reason="the loss is nan"), healthy)
    assert shows(R4[0][0], run_of([5.5 - 0.01 * i for i in range(100)]), healthy)
    bounce = [5.5 - 0.02 * i for i in range(100)]
    bounce[60] += 1.0
    assert shows(R4[0][0], run_of(bounce), healthy)
    assert not shows(R4[0][0], run_of([1.0] * 100), healthy)


def with_norms(losses, norms):
    run = run_of(losses)
    for record, norm in zip(run.records, norms, strict=True):
        record["grad_norm"] = norm
    return run


def test_the_norms_lead_is_counted_from_its_first_jump_to_the_losss():
    losses, norms = [3.0] * 60, [1.0] * 60
    losses[50] = 4.0
    assert first_signs(with_norms(losses, norms)) == {"past 100": 0.0, "lead": 0}
    norms[45], norms[48] = 6.0, 120.0
    assert first_signs(with_norms(losses, norms)) == {"past 100": 1.0, "lead": 5}
    norms[45], norms[48], norms[51] = 1.0, 1.0, 120.0  # behind the loss: no sign
    assert first_signs(with_norms(losses, norms)) == {"past 100": 0.0, "lead": 0}
    assert first_signs(with_norms([3.0] * 60, norms)) is None
    assert first_signs(with_norms([2.0, *losses[1:]], norms)) is None  # worse than at its start before the watch began


def test_the_share_of_an_early_fall():
    early = [5.0] * 10 + [2.0] * 90
    assert early_share(run_of(early)) == 1.0
    assert early_share(run_of([5.0 - 0.03 * i for i in range(100)])) == pytest.approx(0.216, abs=0.02)
    assert early_share(run_of([5.0 - 0.001 * i for i in range(100)])) == 0.0  # it wins next to nothing


def test_a_run_is_compared_with_its_own_control():
    healthy, deep = run_of([5.5 - 0.03 * i for i in range(100)]), run_of([5.5 - 0.02 * i for i in range(100)])
    runs = {"no residual scaling": deep}
    row = [("will not go down, or bounces back", "5 residual outputs not scaled", "no residual scaling")]
    assert symptom_table(row, runs, healthy)[0]["shows it"] is True
    assert symptom_table(row, runs, healthy, runs)[0]["shows it"] is False
    losses = [record["loss"] for record in healthy]
    losses[60] += 1.0  # a bounce that the control has too
    assert shows(R4[0][0], run_of(losses), healthy) and not shows(R4[0][0], run_of(losses), run_of(losses))


def test_cutting_off_the_future_changes_a_leaking_model_alone():
    torch.manual_seed(0)
    leaking = SmallLM(256, 32, 2, 4, 64)
    causal = MendedLM(256, 32, 2, 4, 64)
    for model, same in ((leaking, False), (causal, True)):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(5)
        whole, cut = loss_without_future(model)
        assert (abs(whole - cut) < 1e-4) == same


def test_a_gain_is_taken_seed_by_seed():
    before = [{"held_out": 3.0, "evals": {20: 2.5, 40: 3.0}}, {"held_out": 2.0, "evals": {20: 2.5, 40: 2.0}}]
    assert ends(before) == [3.0, 2.0] and lowest(before) == [2.5, 2.0]
    value, noise = gain("a test", ends(before), [2.5, 1.4])  # 0.5 and 0.6 lower, whatever lies between the seeds
    assert value == pytest.approx(0.55) and noise == pytest.approx(0.1 / math.sqrt(2))
