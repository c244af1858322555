import math

import pytest
import torch

from tinytrain.course import nan_models
from tinytrain.course.lesson_11 import CASES, CheckedScaler, GrowingScaler, train, under_train_step
from tinytrain.course.nan_show import hunt, lead, questions, scale_warns, show_log, show_rerun, side_by_side
from tinytrain.course.nan_trial import difference

SHORT = {"headline": 90, "softmax": 45, "now and then": 50, "standstill": 45, "soaring": 112, "one batch": 62}
FIRST = {  # where the first bad batch may lie: processors round differently
    "headline": (0, 90),
    "softmax": (10, 45),
    "now and then": (20, 50),
    "standstill": (20, 41),
    "soaring": (85, 112),
    "one batch": (60, 61),
    "explosion": (8, 40),
}


@pytest.fixture(scope="module")
def sick():
    """The seven sick runs, each cut off soon after it has broken."""
    return {name: train(name, updates=SHORT.get(name)) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_two_runs_of_a_case_are_identical(sick, name):
    assert train(name, updates=SHORT.get(name)).story == sick[name].story


@pytest.mark.parametrize("name", CASES)
def test_two_mended_runs_are_identical_and_stay_finite(name):
    first, second = (train(name, mended=True, updates=SHORT.get(name)) for _ in range(2))
    assert first.story == second.story
    assert not first.nans and len(first.bad) <= 3


@pytest.mark.parametrize("name", CASES)
def test_each_case_breaks_where_its_story_says(sick, name):
    low, high = FIRST[name]
    assert low <= sick[name].bad[0] < high
    assert (name in ("headline", "standstill")) == (not sick[name].nans)


def test_the_headline_has_its_whole_story():
    run = train("headline")
    dead, scales, zeros = run.nans[0], run.series("loss_scale"), run.series("zero_gradients")
    assert dead > 200 and run.nans == list(range(dead, len(run.run)))
    assert run.mean_loss(0, 5) - run.mean_loss(75, 80) > 1
    assert min(scales[:dead]) < 1e-30 and max(zeros[120:dead]) == 1
    assert all(p.isfinite().all() for p in run.states[dead - 1].values())
    assert not any(p.isfinite().all() for p in list(run.states[-1].values())[:1])


ACCUSED = {
    "softmax": ("blocks.0.attention.softmax", "forward"),
    "now and then": ("blocks.0.norm1", "forward"),
    "standstill": ("blocks.0.norm1", "backward"),
    "soaring": ("head", "backward"),
    "one batch": ("", ""),
}


@pytest.mark.parametrize("name", ACCUSED)
def test_the_hunt_accuses_the_same_module_every_time(sick, name):
    trial = sick[name]
    at = trial.nans[0] if name == "now and then" else trial.bad[0]
    found = hunt(trial, at)
    place = (found.accused, found.first.phase if found.first else "")
    if name == "softmax":
        assert place[0].endswith("attention.softmax") and place[1] == "forward"
    else:
        assert place == ACCUSED[name]
    assert not hunt(trial, trial.bad[0] - 1).found


def test_the_headline_is_hunted_down_to_the_norm_going_backward(sick):
    behind = next(n for n in sick["headline"].skips if n > 80)
    found = hunt(sick["headline"], behind, lines=True)
    assert found.accused == "blocks.0.norm1" and found.first.phase == "backward" and "rsqrt" in found.first.line


def test_the_state_before_a_batch_gives_that_batch_s_loss_again(sick):
    trial = sick["one batch"]
    model, batch, scale = trial.before(30)
    assert trial.loss(model, batch).item() == trial.series("loss")[30] and scale == trial.series("loss_scale")[30]


def test_train_step_keeps_every_weight_finite():
    told = {name: under_train_step(name, SHORT.get(name, 40)) for name in ("softmax", "one batch", "standstill")}
    assert all(each["finite"] for each in told.values())
    assert "under its floor" in told["softmax"]["raised"] and not told["one batch"]["raised"]
    assert told["one batch"]["reasons"] == ["no position of this batch is a target"]
    assert told["standstill"]["reasons"] == ["the gradient's norm is nan"]


@pytest.mark.parametrize("kind", [GrowingScaler, CheckedScaler])
def test_only_the_checked_scaler_looks_before_it_steps(kind):
    weight, scaler = torch.nn.Parameter(torch.ones(1)), kind()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum() * math.inf).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    checked = kind is CheckedScaler
    assert bool(weight.isfinite()) == checked
    assert scaler.get_scale() == (2.0**12 if checked else 2.0**13)


def test_the_scale_warns_of_three_falls_or_of_soaring_and_of_nothing_else(sick):
    assert scale_warns(sick["one batch"]) is None and lead(sick["one batch"]) == 60 - 62
    soaring = sick["soaring"]
    assert soaring.series("loss_scale")[scale_warns(soaring)] == 2.0**18 and lead(soaring) > 5
    assert 41 < scale_warns(sick["standstill"]) < 45


@pytest.mark.parametrize("sound", [nan_models.Float32RMSNorm, nan_models.TwiceGuardedRMSNorm])
def test_the_norms_agree_with_torch_on_ordinary_rows(sound):
    x = torch.randn(3, nan_models.WIDTH)
    for norm in (sound(), nan_models.HandRMSNorm(), nan_models.GuardedRMSNorm()):
        torch.testing.assert_close(norm(x), torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-8))


def test_both_softmaxes_agree_with_torch():
    scores = torch.randn(2, 5)
    for softmax in (nan_models.HandSoftmax(), nan_models.ShiftedSoftmax()):
        torch.testing.assert_close(softmax(scores), scores.softmax(-1))


def test_the_model_sees_no_future():
    torch.manual_seed(0)
    model, ids = nan_models.Model(), torch.randint(256, (1, 12))
    changed = ids.clone()
    changed[0, 8:] = torch.randint(256, (4,))
    torch.testing.assert_close(model(ids)[:, :8], model(changed)[:, :8])


def test_pictures_and_questions_show_every_case(sick, capsys):
    for name, trial in sick.items():
        assert len(show_log(trial, name).axes) == 2
        questions(trial)
        assert "largest logit" in capsys.readouterr().out and "+" in difference(CASES[name])
    figure = show_rerun(sick["softmax"], sick["explosion"], "two")
    sick_line, mended_line, ends = figure.axes[0].lines
    assert len(sick_line.get_xdata()) == len(sick["softmax"].run) and mended_line.get_color() != sick_line.get_color()
    lost = sick["softmax"].nans
    assert ends.get_marker() == "x" and ends.get_xdata().tolist() == [n for n in lost if n - 1 not in lost]


def test_cases_stand_side_by_side(sick, capsys):
    two = {name: sick[name] for name in ("standstill", "one batch")}
    hunts = {name: hunt(trial, trial.bad[0]) for name, trial in two.items()}
    side_by_side(two, two, two, hunts)
    head, standstill, one_batch = (line.split() for line in capsys.readouterr().out.splitlines())
    count = str(len(sick["standstill"].bad))
    assert head[0] == "case" and standstill[1:] == ["40", "none", "blocks.0.norm1", "backward", *[count] * 3]
    assert " ".join(one_batch) == "one batch none 60 outside the model 1 1 1"
