"""Group E: half precision, the loss scale, clipping and NaN.

The kind of fault: a number that is right in itself, used in the wrong unit or too late. A limit for the true gradient
applied to the scaled one, a scale divided out twice, weights that are too narrow to be updated, a constant that FP16
cannot hold, a NaN that only the backward pass sees. All of it runs here in real FP16 on a CPU.
"""

import math

import pytest
import torch
from paper import OnPaper, costs
from torch import nn

from tinytrain.batches import collate
from tinytrain.data import RowBatches, TokenRows
from tinytrain.forward import forward_logits
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.step import evaluate, train_step
from tinytrain.train import TrainConfig, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no hardware for")

ROWS = TokenRows(torch.randint(0, 64, (1025,), generator=torch.Generator().manual_seed(1)), 16, vocab_size=64)


def small():
    torch.manual_seed(0)
    return GPT(ModelConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=2, max_positions=32))


def scaled_gradient(model, scaler):
    """Backward of 1 nat per unit of id, times the scale."""
    scaler.scale(-model(torch.tensor([[1]]))[0, 0, 1]).backward()


def test_E01_the_limit_is_for_the_true_gradient_so_it_is_unscaled_before_clipping():
    """milesial/Pytorch-UNet#468, pytorch/examples#1196: clipped first, every update is a thousandth of what it was."""
    naive, scaler = OnPaper(0.5, prices=(3.0, 4.0), dtype=torch.float32), torch.amp.GradScaler("cpu", init_scale=1024)
    optimizer = torch.optim.SGD(naive.parameters(), lr=1.0)
    scaled_gradient(naive, scaler)
    assert nn.utils.clip_grad_norm_(naive.parameters(), 1.0).item() == pytest.approx(5120)
    scaler.step(optimizer)
    assert (naive.weight - 0.5).tolist() == pytest.approx([-0.6 / 1024, -0.8 / 1024], abs=1e-6)

    model = OnPaper(0.5, prices=(3.0, 4.0), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = train_step(model, [costs(1)], optimizer, lr=1.0, precision=Precision("fp16", init_scale=1024))
    assert (report.grad_norm, report.scale) == (pytest.approx(5.0, abs=1e-5), 1024)
    assert (model.weight - 0.5).tolist() == pytest.approx([-0.6, -0.8], abs=1e-6)


@pytest.fixture
def spied(monkeypatch):
    """Counts the calls of torch's scaler, and notes the scale at each."""
    calls = {"scale": [], "unscale_": [], "update": []}

    def spy(name):
        original = getattr(torch.amp.GradScaler, name)

        def noted(self, *arguments):
            calls[name].append(self.get_scale())
            return original(self, *arguments)

        monkeypatch.setattr(torch.amp.GradScaler, name, noted)

    for name in calls:
        spy(name)
    return calls


def test_E02_the_gradient_is_unscaled_once_per_update_and_the_scale_holds_within_one(spied):
    """microsoft/Swin-Transformer#311, huggingface/accelerate#641: unscaled with every micro-batch."""
    naive, scaler = OnPaper(dtype=torch.float32), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(naive.parameters(), lr=0.1)
    scaled_gradient(naive, scaler)
    scaler.unscale_(optimizer)
    scaled_gradient(naive, scaler)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    for seen in spied.values():
        seen.clear()

    model, precision = small(), Precision("fp16", init_scale=1024, growth_interval=1)
    optimizer, updates = build_adamw(model, lr=1e-3), []
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    data = RowBatches(rows=ROWS, batch_size=4, micro_batch_size=2)
    for n in range(2):
        assert len(data[n]) == 2
        train_step(model, data[n], optimizer, lr=1e-3, precision=precision, max_grad_norm=0.1)
    assert len(updates) == 2
    assert spied["unscale_"] == spied["update"] == [1024, 2048]
    assert spied["scale"] == sorted(spied["scale"]) and set(spied["scale"]) == {1024, 2048}


@pytest.mark.parametrize(
    ("dtype", "mode"), [(torch.float16, "fp16"), (torch.float16, "fp32"), (torch.bfloat16, "bf16")]
)
def test_E03_weights_in_half_precision_are_refused_before_the_first_update(dtype, mode):
    """pytorch/pytorch#74739: .half() and a scaler, instead of float32 weights and autocast."""
    naive, scaler = OnPaper(dtype=torch.float16), torch.amp.GradScaler("cpu", init_scale=2.0)
    scaled_gradient(naive, scaler)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):  # after a forward and a backward pass
        scaler.unscale_(torch.optim.SGD(naive.parameters(), lr=0.1))

    words = (
        rf"tokens.weight is {dtype}: keep weights in float32 .*TrainConfig\(precision='bf16'\), or Precision\('bf16'\)"
    )
    model = small().to(dtype)
    with pytest.raises(ValueError, match=words):
        Trainer(model, RowBatches(rows=ROWS, batch_size=4), TrainConfig(total_steps=1, max_lr=1e-3, precision=mode))
    with pytest.raises(ValueError, match=words):
        train_step(model, [ROWS.stack([0])], build_adamw(model, lr=0.1), lr=0.1, precision=Precision(mode))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch's own default is right where there is CUDA")
def test_E04_torchs_default_scaler_is_silently_off_without_cuda_and_this_one_is_on():
    with pytest.warns(UserWarning, match="CUDA is not available"):
        naive = torch.amp.GradScaler()
    assert not naive.is_enabled() and naive.state_dict() == {}

    precision, model = Precision("fp16"), small()
    report = train_step(model, [ROWS.stack([0])], build_adamw(model, lr=1e-3), lr=1e-3, precision=precision)
    assert report.scale == precision.state_dict()["scale"] == 65536.0


def test_E04_a_run_in_fp16_on_a_cpu_starts_at_scale_65536_and_learns():
    batch, records = [ROWS.stack(list(range(8)))], []
    config = TrainConfig(total_steps=20, max_lr=3e-3, precision="fp16")
    Trainer(small(), lambda n: batch, config, [records.append]).fit()
    assert records[0]["loss_scale"] == 65536.0
    assert records[-1]["loss"] < records[0]["loss"] - 0.1 and not any(r["skipped"] for r in records)


def test_E04_a_state_without_a_scale_is_not_taken_for_one_with_a_scale():
    with pytest.raises(RuntimeError):
        torch.amp.GradScaler("cpu").load_state_dict({})
    with pytest.raises(ValueError, match=r"saved without a loss scale .*precision is fp16: resume in the same"):
        Precision("fp16").load_state_dict(Precision("fp32").state_dict())

    precision, model = Precision("fp16", init_scale=1024), small()
    train_step(model, [ROWS.stack([0])], build_adamw(model, lr=1e-3), lr=1e-3, precision=precision)
    with pytest.raises(ValueError, match=r"saved with a loss scale .*precision is fp32"):
        Precision("fp32").load_state_dict(precision.state_dict())


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_E08_an_evaluation_before_the_step_takes_no_gradient_away(mode):
    """pytorch/pytorch#112583: autocast keeps the narrow copies of weights, also those that were made without gradients.

    The evaluation and the update share one autocast block here, the unkind case.
    """

    def gradients(look_first):
        model, precision = small(), Precision(mode)
        optimizer = build_adamw(model, lr=1e-3)
        with torch.autocast("cpu", dtype=precision.dtype):
            if look_first:
                evaluate(model, [ROWS.stack([0, 1])], precision=precision)
            train_step(model, [ROWS.stack([2, 3])], optimizer, lr=0.0, precision=precision)
        return {name: p.grad for name, p in model.named_parameters()}

    looked, plain = gradients(True), gradients(False)
    assert [name for name, gradient in looked.items() if gradient is None] == []
    assert all(torch.equal(looked[name], plain[name]) for name in plain)


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_E09_a_padded_batch_runs_in_half_precision_for_the_mask_holds_no_number(mode):
    """facebookresearch/fairseq#3575, NVIDIA/apex#1105: -1e9 fits into BF16 and not into FP16."""
    blocked = torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="cannot be converted"):
        torch.zeros(2).half().masked_fill(blocked, -1e9)
    assert torch.zeros(2).bfloat16().masked_fill(blocked, -1e9).isfinite().all()

    batch = collate([[1, 2, 3, 4, 5], [6, 7]], pad_id=0, side="left")
    real, model = batch["attention_mask"], small()
    with torch.no_grad():
        exact = forward_logits(model, batch)[real]
        with Precision(mode).autocast(torch.device("cpu")):
            narrow = forward_logits(model, batch)
    assert narrow.dtype in (torch.float16, torch.bfloat16) and narrow.isfinite().all()
    assert torch.allclose(narrow[real].float(), exact, atol=0.02)


def exp_or_line(a, safe):
    return torch.where(a <= 0, (a.clamp(max=0) if safe else a).exp(), 1 + a).sum()


def log_of_some(x, safe):
    allowed = x > -1
    return torch.log1p(torch.where(allowed, x, 0) if safe else x)[allowed].sum()


class Trapped(nn.Module):
    """Two logits, 0 and a part of what the module ``inner`` makes of the weight."""

    def __init__(self, function, at, safe):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.tensor(at)), nn.Identity()
        self.inner.forward = lambda x: function(x, safe)

    def forward(self, input_ids):
        return (self.inner(self.weight) / 101 * torch.arange(2.0)).expand(*input_ids.shape, 2)


@pytest.mark.parametrize(
    ("function", "at", "value", "slope", "safe_slope", "culprit"),
    [
        (exp_or_line, [100.0], 101.0, [math.nan], [1.0], "ExpBackward"),
        (log_of_some, [-1.0, 0.5, 1.0], 1.098612, [math.nan, 2 / 3, 0.5], [0.0, 2 / 3, 0.5], "Log1[pP]Backward"),
    ],
)
def test_E11_a_nan_that_only_the_backward_pass_sees_changes_nothing_and_its_module_is_named(
    function, at, value, slope, safe_slope, culprit
):
    """pytorch/pytorch#68425: the branch that was not taken still takes part, as 0 times infinity."""
    batch = [{"input_ids": torch.zeros(1, 2, dtype=torch.long), "labels": torch.tensor([[0, 1]])}]
    config = TrainConfig(total_steps=1, max_lr=1.0, weight_decay=0.0)
    for safe, right in ((False, slope), (True, safe_slope)):
        x = torch.tensor(at, requires_grad=True)
        function(x, safe).backward()
        assert function(x, safe).item() == pytest.approx(value, abs=1e-5), "nothing to be seen in the forward pass"
        assert x.grad.tolist() == pytest.approx(right, abs=1e-6, nan_ok=True)

        model, records = Trapped(function, at, safe), []
        Trainer(model, lambda n: batch, config, [records.append, lambda record: False]).fit()
        assert math.isfinite(records[0]["loss"]) and records[0]["skipped"] is not safe
        assert (model.weight.tolist() == at) is not safe
        assert records[0].get("reason") == (None if safe else "the gradient's norm is nan")
        assert records[0].get("where") == (None if safe else "the gradient leaves inner non-finite on its way back")

    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match=f"Error detected in {culprit}"),
        pytest.raises(RuntimeError, match=culprit),
    ):
        function(torch.tensor(at, requires_grad=True), safe=False).backward()
