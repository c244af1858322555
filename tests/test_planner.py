"""The plan against real models: parameters counted, operations counted, and every tensor of an update counted."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.recompute import recompute_activations
from tinytrain.step import train_step
from tinytrain.watch.planner import (
    GiB,
    count_parameters,
    flops_per_token,
    largest_micro_batch,
    memory_of,
    plan,
)
from tinytrain.watch.tensor_memory import TensorMemory

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no hardware for")  # here BF16 is counted, not timed


def config_of(V, D, L, T=64, H=4):
    return ModelConfig(vocab_size=V, d_model=D, n_layers=L, n_heads=H, max_positions=T)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_those_of_the_model(name):
    with torch.device("meta"):
        model = GPT(PRESETS[name])
    assert count_parameters(PRESETS[name]) == sum(p.numel() for p in model.parameters())


def test_the_sizes_that_articles_state():
    assert count_parameters(PRESETS["27m"]) == 29_125_632  # "27.8M"
    assert count_parameters(PRESETS["120m"]) == 108_489_216  # "120M", with a tied head
    assert count_parameters(PRESETS["120m"], tied=False) == 131_529_216


@pytest.mark.parametrize(("V", "D", "L", "T"), [(256, 64, 2, 64), (500, 128, 3, 32), (50, 64, 1, 128)])
def test_operations_are_those_of_a_real_pass(V, D, L, T):
    config = config_of(V, D, L, T)
    model, ids = GPT(config), torch.zeros(2, T, dtype=torch.long)
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counted,
    ):  # torch does not count others on a CPU
        cross_entropy(model(ids), ids).backward()
    assert counted.get_total_flops() == flops_per_token(config) * 2 * T
    assert flops_per_token(config, recompute=True) - flops_per_token(config) == 2 * 12 * D * D * L + 4 * L * T * D


def test_the_logits_made_twice_are_a_small_share_of_the_120m_preset():
    config = PRESETS["120m"]
    assert 2 * config.vocab_size * config.d_model / flops_per_token(config) == pytest.approx(0.065, abs=0.001)


def peak_of(config, rows, precision, recompute, micro_batches, chunk=None):
    torch.manual_seed(0)
    model = GPT(config)
    model.loss_chunk = chunk
    if recompute:
        recompute_activations(model)
    optimizer, precision = build_adamw(model, lr=1e-3), Precision(precision)
    shape = (rows, config.max_positions)
    batches = [{name: torch.randint(0, 9, shape) for name in ("input_ids", "labels")} for _ in range(micro_batches)]
    train_step(model, batches, optimizer, lr=1e-3, precision=precision)
    model.zero_grad(set_to_none=True)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    with TensorMemory([*model.parameters(), *moments]) as memory:
        train_step(model, batches, optimizer, lr=1e-3, precision=precision)
    return memory.peak


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (config_of(256, 64, 2), 16),
        (config_of(50, 256, 3), 8),  # the blocks' backward pass is the fullest moment
        (config_of(8000, 128, 2), 4),  # the logits
        (config_of(8000, 128, 2), 1),  # the embedding's gradient
        (config_of(500, 128, 6), 8),
    ],
)
def test_memory_is_that_of_a_real_update(config, rows, precision, recompute, micro_batches):
    planned = memory_of(
        config, micro_batch_size=rows, precision=precision, recompute=recompute, accumulate=micro_batches > 1
    )
    assert planned.total == pytest.approx(peak_of(config, rows, precision, recompute, micro_batches), rel=0.03)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_memory_with_the_loss_in_chunks_is_that_of_a_real_update(precision, micro_batches):
    config = config_of(4000, 64, 2)
    planned = memory_of(config, micro_batch_size=16, precision=precision, accumulate=micro_batches > 1, loss_chunk=128)
    assert planned.total == pytest.approx(peak_of(config, 16, precision, False, micro_batches, 128), rel=0.03)
    assert planned.total < 0.4 * memory_of(config, micro_batch_size=16, precision=precision).total


@pytest.mark.parametrize(
    ("rows", "precision", "chunk"),
    [
        (2, "fp32", 16),  # the fullest moment is the sum of the head's gradients, of one chunk and of those before
        (2, "bf16", 16),
        (4, "bf16", 128),  # the logits; the head's gradient has 16 bits
        (2, "fp32", 128),  # one chunk: nothing to add to
    ],
)
def test_the_heads_gradient_over_chunks_is_that_of_a_real_update(rows, precision, chunk):
    config = config_of(9000, 128, 2)
    planned = memory_of(config, micro_batch_size=rows, precision=precision, loss_chunk=chunk)
    assert planned.total == pytest.approx(peak_of(config, rows, precision, False, 1, chunk), rel=0.01)


def test_the_largest_micro_batch_fits_and_one_row_more_does_not():
    config, how = PRESETS["120m"], {"precision": "bf16", "accumulate": True}
    for memory in (6 * GiB, 24 * GiB, 80 * GiB):
        rows = largest_micro_batch(config, memory, **how)
        assert memory_of(config, micro_batch_size=rows, **how).total <= memory
        assert memory_of(config, micro_batch_size=rows + 1, **how).total > memory
    assert largest_micro_batch(config, GiB, **how) == 0
    assert largest_micro_batch(config, 1e15, most=37, **how) == 37


def test_a_plan_divides_its_batch_and_stays_within_the_memory():
    made = plan(PRESETS["120m"], batch_size=256, gpu_memory=24, tokens=500e6)
    assert made.micro_batch_size * made.accumulation == made.batch_size == 256 and made.accumulation > 1
    assert made.memory.total <= 23 * GiB
    assert made.tokens_per_update == 131_072 and made.updates == math.ceil(500e6 / 131_072) == 3815
    whole = plan(PRESETS["120m"], batch_size=8, gpu_memory=24)
    assert (whole.micro_batch_size, whole.accumulation) == (8, 1)
    assert whole.tokens == 20 * 108_489_216


def test_hours_follow_from_operations_and_the_peak():
    made = plan(PRESETS["nano"], processes=2, batch_size=4, tokens=1e9, peak_tflops=100.0, mfu=0.5)
    assert made.hours == pytest.approx(1e9 * flops_per_token(PRESETS["nano"]) / (2 * 100e12 * 0.5) / 3600)
    again = plan(PRESETS["nano"], processes=2, batch_size=4, tokens=1e9, peak_tflops=100.0, mfu=0.5, recompute=True)
    assert 1.2 < again.hours / made.hours < 4 / 3


def test_shards_share_weights_and_moments_out():
    one = memory_of(PRESETS["350m"], micro_batch_size=1, precision="bf16")
    eight = memory_of(PRESETS["350m"], micro_batch_size=1, precision="bf16", shards=8)
    assert eight.moments == pytest.approx(one.moments / 8, rel=1e-6)
    assert eight.activations == one.activations and eight.total < 0.5 * one.total


def test_weights_and_gradients_alone_are_not_what_7b_needs():
    """30 GB, as an article has it, are two bytes for each weight and each gradient, and nothing else."""
    parameters = count_parameters(PRESETS["7b"])
    assert 4 * parameters == pytest.approx(27e9, rel=0.05)
    memory = plan(PRESETS["7b"], batch_size=1, row_length=2048).memory
    assert memory.weights + memory.moments == 12 * parameters and memory.total > 100e9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 7, "processes": 2}, "7 rows cannot be shared evenly by 2"),
        ({"batch_size": 8, "micro_batch_size": 3}, "8 rows for each process cannot be cut into micro-batches of 3"),
        ({"gpu_memory": 2.5}, "one row of 512 tokens needs"),
        ({"row_length": 513}, "row_length=513 is longer than the model's max_positions=512"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"mfu": 0.0}, "mfu=0.0"),
        ({"processes": 0}, "processes=0"),
        ({"micro_batch_size": -1}, "micro_batch_size=-1"),
        ({"micro_batch_size": 0}, "micro_batch_size=0 must be at least 1"),
        ({"row_length": 0}, "row_length=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"loss_chunk": 0}, "loss_chunk=0 must be at least 1"),
        ({"loss_chunk": -7}, "loss_chunk=-7 must be at least 1"),
        ({"tokens": 0}, "tokens=0 must be above 0, and finite"),
        ({"tokens": -1.0}, "tokens=-1.0 must be above 0"),
        ({"tokens": float("nan")}, "tokens=nan must be above 0"),
        ({"tokens": float("inf")}, "tokens=inf must be above 0, and finite"),
        ({"gpu_memory": float("nan")}, "gpu_memory=nan must be above 0"),
        ({"gpu_memory": -24}, "gpu_memory=-24 must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        plan(PRESETS["120m"], **wrong)


def test_a_plan_says_that_shares_are_an_estimate():
    how = {"batch_size": 8, "tokens": 1e9}
    assert "estimate" in str(plan(PRESETS["120m"], processes=2, shard=True, **how))
    assert "estimate" not in str(plan(PRESETS["120m"], processes=2, **how))
    assert "estimate" not in str(plan(PRESETS["120m"], processes=1, shard=True, **how))


def test_it_prints_what_a_reader_asks_for():
    words = str(plan(PRESETS["120m"], batch_size=256, gpu_memory=24, tokens=500e6))
    for part in (
        "108,489,216",
        "131,529,216",
        "131,072 tokens an update",
        "3,815 updates",
        "of 24 GiB",
        "hours at 40%",
    ):
        assert part in words


@pytest.mark.parametrize("nothing", [{"micro_batch_size": 0}, {"row_length": 0}, {"shards": 0}])
def test_memory_of_no_rows_positions_or_shards_is_refused(nothing):
    with pytest.raises(ValueError, match="must be at least 1"):
        memory_of(PRESETS["nano"], **({"micro_batch_size": 1} | nothing))
