"""What only a GPU can show. Without one, each test is skipped and says so."""

from dataclasses import replace

import pytest
import torch

from tinytrain.attention import Documents, Masked, _same_document
from tinytrain.batches import pack
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.step import train_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def model_on(device):
    torch.manual_seed(0)
    return GPT(replace(PRESETS["nano"], d_model=128)).to(device)


def batch_of(seed=0):
    ids = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def gradient(device):
    model = model_on(device)
    report = train_step(model, [batch_of(0), batch_of(1)], build_adamw(model, lr=0.0), lr=0.0)
    return report, torch.cat([p.grad.flatten() for p in model.parameters()]).double().cpu()


def test_a_gpu_computes_the_update_that_a_cpu_does():
    (here, on_cpu), (there, on_gpu) = gradient("cpu"), gradient("cuda")
    assert there.loss == pytest.approx(here.loss, rel=1e-5)
    assert ((on_gpu - on_cpu).norm() / on_cpu.norm()).item() <= 1e-4


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_the_loss_falls_in_every_precision(mode):
    model, precision = model_on("cuda"), Precision(mode)
    optimizer = build_adamw(model, lr=3e-3)
    assert optimizer.defaults["fused"] is True
    losses = [train_step(model, [batch_of()], optimizer, lr=3e-3, precision=precision).loss for _ in range(30)]
    assert losses[-1] < losses[0] - 1.0


def test_flash_attention_over_documents_equals_the_mask():
    generator = torch.Generator().manual_seed(0)
    packed = pack([torch.randint(0, 256, (n,), generator=generator) for n in (12, 40, 9, 30, 64, 3)], 64)
    doc_ids = packed.doc_ids.cuda()
    q, k, v = torch.randn(3, len(packed), 4, 64, 32, device="cuda", dtype=torch.bfloat16)
    flash, masked = Documents(doc_ids)(q, k, v, 0.0), Masked(_same_document(doc_ids))(q, k, v, 0.0)
    assert (flash.float() - masked.float()).abs().max().item() < 0.05  # bfloat16 has a step of 0.008 near 1


def test_nothing_is_read_back_between_the_micro_batches(monkeypatch):
    model, precision = model_on("cuda"), Precision("bf16")
    optimizer = build_adamw(model, lr=1e-3)
    micro_batches = [{name: t.pin_memory() for name, t in batch_of(seed).items()} for seed in range(4)]
    train_step(model, micro_batches, optimizer, lr=1e-3, precision=precision)
    forward, seen = model.forward, []

    def strict(*arguments, **named):
        torch.cuda.set_sync_debug_mode("error")  # from the first forward on, waiting for the device is an error
        seen.append(1)
        return forward(*arguments, **named)

    real_norm = torch.nn.utils.clip_grad_norm_

    def norm_then_allow(*arguments, **named):
        norm = real_norm(*arguments, **named)
        torch.cuda.set_sync_debug_mode("default")  # behind the micro-batches one read is allowed
        return norm

    monkeypatch.setattr(model, "forward", strict)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", norm_then_allow)
    try:
        report = train_step(model, micro_batches, optimizer, lr=1e-3, precision=precision)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen) == 4 and not report.skipped
