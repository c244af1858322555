import math
import warnings

import pytest
import torch
from torch import nn

import tinytrain.precision
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.precision import LossScaleError, Precision, check_float32, cpu_supports, measured_slowdown
from tinytrain.step import train_step

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("any_format_is_fast")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def batch_of(rows=2, length=8):
    ids = torch.randint(0, 256, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


class ThreeFour(nn.Module):
    """A model whose gradient is [3, 4] times whatever reaches its logits, so that a norm can be done on paper."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, input_ids):
        # The loss of label 0 of two tokens has slope -1/2 in the difference of the logits where they are equal.
        tilt = -2.0 * (self.weight * torch.tensor([3.0, 4.0])).sum()
        return torch.stack([tilt, torch.zeros(())]).expand(*input_ids.shape, 2)


ONE_TARGET = {"input_ids": torch.zeros(1, 1, dtype=torch.long), "labels": torch.zeros(1, 1, dtype=torch.long)}


def test_clipping_sees_the_true_gradient_whatever_the_scale():
    model, precision = ThreeFour(), Precision("fp16", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = train_step(model, [ONE_TARGET], optimizer, lr=1.0, precision=precision)
    assert (report.grad_norm, report.scale) == (5.0, 1024.0)  # clipped before unscaling it would be 5120
    assert model.weight.tolist() == pytest.approx([-0.6, -0.8], abs=1e-6)


def test_weights_moments_and_gradients_stay_float32_in_every_mode(model):
    for mode in ("fp32", "bf16", "fp16"):
        optimizer, precision = build_adamw(model, lr=1e-3), Precision(mode)
        train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
        kinds = {t.dtype for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())}
        assert kinds == {torch.float32}


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_the_forward_pass_is_half_as_wide_and_the_loss_is_not(model, mode):
    seen = []
    model.head.register_forward_hook(lambda _m, _i, output: seen.append(output.dtype))
    report = train_step(model, [batch_of()], build_adamw(model, lr=1e-3), lr=1e-3, precision=Precision(mode))
    assert seen == [Precision(mode).dtype]
    assert report.loss == pytest.approx(math.log(256), abs=0.1)


def test_fp16_on_a_cpu_has_a_scaler_that_works_and_the_loss_falls(model):
    precision, optimizer = Precision("fp16"), build_adamw(model, lr=3e-3)
    reports = [train_step(model, [batch_of()], optimizer, lr=3e-3, precision=precision) for _ in range(20)]
    assert reports[0].scale == 65536.0
    assert reports[-1].loss < reports[0].loss - 0.5


def test_an_overflow_halves_the_scale_and_changes_nothing_else(model):
    precision, optimizer = Precision("fp16"), build_adamw(model, lr=1e-3)
    hook = model.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = [p.detach().clone() for p in model.parameters()]
    bad = train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
    hook.remove()
    assert bad.skipped and all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    good = train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
    assert (bad.scale, good.scale, good.skipped) == (65536.0, 32768.0, False)


def test_good_steps_in_a_row_double_the_scale(model):
    precision, optimizer = Precision("fp16", init_scale=4.0, growth_interval=2), build_adamw(model, lr=1e-4)
    scales = [train_step(model, [batch_of()], optimizer, lr=1e-4, precision=precision).scale for _ in range(5)]
    assert scales == [4.0, 4.0, 8.0, 8.0, 16.0]


def test_the_scale_holds_still_within_an_update(model):
    precision, optimizer = Precision("fp16", init_scale=4.0, growth_interval=1), build_adamw(model, lr=1e-4)
    micro_batches = [batch_of()] * 4
    assert [train_step(model, micro_batches, optimizer, lr=0.0, precision=precision).scale for _ in range(3)] == [
        4,
        8,
        16,
    ]


def test_a_scale_under_its_floor_ends_the_run_before_a_weight_is_touched(model):
    precision, optimizer = Precision("fp16", init_scale=4.0), build_adamw(model, lr=1e-3)
    hook = model.head.weight.register_hook(lambda gradient: gradient * math.inf)
    before = [p.detach().clone() for p in model.parameters()]
    for expected in (4.0, 2.0, 1.0):
        assert train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision).scale == expected
    hook.remove()  # even with good gradients again, a scale of 0.5 is not used
    with pytest.raises(LossScaleError, match=r"the loss scale is 0\.5, under its floor of 1, .* train in BF16"):
        train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
    assert all(torch.equal(b, p) for b, p in zip(before, model.parameters(), strict=True))


def test_what_torchs_own_scaler_does_at_scale_zero():
    """The reason for the floor: at scale 0 the step is not skipped, and the weights become NaN."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=0.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.isnan().all()


def test_the_scale_is_saved_and_goes_on(model):
    first, optimizer = Precision("fp16", init_scale=8.0, growth_interval=2), build_adamw(model, lr=1e-4)
    train_step(model, [batch_of()], optimizer, lr=0.0, precision=first)
    for loads_before_it_is_used in (True, False):
        second = Precision("fp16", growth_interval=2)
        if not loads_before_it_is_used:
            second.prepare(model, CPU)
        second.load_state_dict(first.state_dict())
        scales = [train_step(model, [batch_of()], optimizer, lr=0.0, precision=second).scale for _ in range(2)]
        assert scales == [8.0, 16.0]  # one good step had been made already


def test_a_state_that_was_loaded_is_kept_until_there_is_a_scaler():
    precision = Precision("fp16")
    assert precision.state_dict() == {}
    precision.load_state_dict({"scale": 8.0})
    assert precision.state_dict() == {"scale": 8.0}


def test_without_a_scaler_the_scale_is_a_one_where_the_weights_are():
    weights = [nn.Parameter(torch.zeros(2, device="meta"))]
    scale = Precision("bf16").unscale(torch.optim.SGD(weights, lr=1.0))
    assert scale.shape == () and scale.device.type == "meta"


def test_only_fp16_has_a_scaler(model):
    for mode, has in (("fp32", False), ("bf16", False), ("fp16", True)):
        precision = Precision(mode)
        precision.prepare(model, CPU)
        assert bool(precision.state_dict()) == has


def test_without_a_word_the_scale_starts_at_two_to_the_sixteen_and_doubles_after_two_thousand_good_steps(model):
    precision = Precision("fp16")
    precision.prepare(model, CPU)
    state = precision.state_dict()
    assert (state["scale"], state["growth_interval"]) == (65536.0, 2000)


def test_a_scale_may_start_at_its_floor():
    assert Precision("fp16", init_scale=1.0, min_scale=1.0).min_scale == 1.0


def test_a_state_of_another_precision_is_refused():
    with pytest.raises(ValueError, match=r"saved without a loss scale \(FP32 or BF16\), and precision is fp16"):
        Precision("fp16").load_state_dict(Precision("fp32").state_dict())
    with pytest.raises(ValueError, match=r"saved with a loss scale \(FP16\), and precision is bf16"):
        Precision("bf16").load_state_dict({"scale": 1.0})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_refused_by_name_before_the_first_step(model, dtype):
    model.blocks[1].feed_forward.out.to(dtype)
    with pytest.raises(ValueError, match=r"blocks\.1\.feed_forward\.out\.weight is torch\..* keep weights in float32"):
        check_float32(model)
    with pytest.raises(ValueError, match="keep weights in float32"):
        train_step(model, [batch_of()], build_adamw(model, lr=1e-3, fused=False), lr=1e-3)


def test_a_format_without_hardware_warns_once_with_a_measured_slowdown(model, monkeypatch):
    monkeypatch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: dtype is not torch.bfloat16)
    monkeypatch.setattr(tinytrain.precision, "measured_slowdown", {torch.bfloat16: 12.34}.get)
    precision, optimizer = Precision("bf16"), build_adamw(model, lr=1e-3)
    with pytest.warns(UserWarning, match=r"no hardware for bfloat16: a matrix product takes 12\.3 times as long"):
        train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
        train_step(model, [batch_of()], optimizer, lr=1e-3)  # float32 never warns


@pytest.mark.parametrize(
    ("instructions", "supported"),
    [
        ([], {torch.float32}),
        (["_is_avx512_bf16_supported"], {torch.float32, torch.bfloat16}),
        (["_is_amx_tile_supported"], {torch.float32, torch.bfloat16}),
        (["_is_amx_fp16_supported"], {torch.float32, torch.float16}),
    ],
)
def test_a_cpu_supports_what_it_has_instructions_for(monkeypatch, instructions, supported):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in instructions)
    assert {dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if cpu_supports(dtype)} == supported


def test_the_slowdown_is_the_ratio_of_the_shortest_laps(monkeypatch):
    laps = [3.0, 2.0, 5.0, 8.0]  # two of float32, two of bfloat16
    clock = iter([moment for lap in laps for moment in (100.0, 100.0 + lap)])
    monkeypatch.setattr(tinytrain.precision.time, "perf_counter", lambda: next(clock))
    assert measured_slowdown(torch.bfloat16, size=2, repeats=2) == 2.5


def test_the_slowdown_is_that_of_the_format_asked_for():
    with pytest.raises(RuntimeError, match="Bool"):  # of which torch multiplies no matrices
        measured_slowdown(torch.bool, size=2)


def test_the_slowdown_is_that_of_square_matrices(monkeypatch):
    shapes, ones = [], torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, dtype: shapes.append(shape) or ones(*shape, dtype=dtype))
    measured_slowdown(torch.bfloat16, size=2)
    assert shapes == [(2, 2), (2, 2)]


def test_the_slowdown_is_a_measured_ratio():
    assert 0.01 < measured_slowdown(torch.float32, size=64) < 100
    assert 0.01 < measured_slowdown(torch.bfloat16, size=64) < 10_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "fp8"}, "precision 'fp8' is not one of fp32, bf16, fp16"),
        ({"mode": "fp16", "min_scale": 0.0}, "min_scale=0.0"),
        ({"mode": "fp16", "init_scale": 0.5}, "init_scale=0.5"),
    ],
)
def test_what_makes_no_precision_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Precision(**options)
