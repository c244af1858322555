"""The runs and pictures of notebook 07 do what their arguments say."""

import math

import pytest
import torch
import torch.nn.functional as F
from matplotlib import pyplot as plt

from tinytrain.course.lesson_07 import (
    FORMATS,
    HandSoftmax,
    batches,
    bits_of,
    by_lot,
    draw_bits,
    fresh,
    loss_of,
    plot_powers,
    plot_ranges,
    powers,
    train,
    values_by_place,
)

FEW = {"steps": 4, "lr": 1e-3}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [1.0, -0.15625, 3e-5, 0.1])
def test_bits_stand_for_the_number_that_torch_stores(name, value):
    exponent, mantissa = FORMATS[name]
    bits = bits_of(value, name)
    assert len(bits) == 1 + exponent + mantissa
    power, rest = int(bits[1 : 1 + exponent], 2), int(bits[1 + exponent :], 2) / 2**mantissa
    bias = 2 ** (exponent - 1) - 1
    size = (1 + rest) * 2.0 ** (power - bias) if power else rest * 2.0 ** (1 - bias)
    dtype = {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}[name]
    assert (-size if bits[0] == "1" else size) == torch.tensor(value).to(dtype).item()


def test_rounding_by_lot_takes_one_of_two_neighbours_and_is_right_in_the_mean():
    values = torch.full((20_000,), 1 + 2**-7 * 0.25)
    rounded = by_lot(values, torch.Generator().manual_seed(0))
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    assert rounded.mean().item() == pytest.approx(values[0].item(), abs=2**-7 * 0.02)
    kept = torch.tensor([1.5, -2.0, 0.0])
    assert torch.equal(by_lot(kept), kept)


def test_powers_counts_each_value_between_two_powers_of_two():
    assert powers(torch.tensor([0.25, -0.3, 1.0, 0.0]), low=-3, high=1) == pytest.approx([0, 2 / 3, 0, 1 / 3])


@pytest.mark.parametrize("shift", [True, False])
def test_the_softmax_by_hand_is_torchs_where_nothing_overflows(shift):
    model = fresh()
    attention = model.blocks[0].attention
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    q, k, v = attention.qkv(x).view(2, 5, 3, 2, 16).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    wanted = attention.out(mixed.transpose(1, 2).reshape(2, 5, 32))
    by_hand = HandSoftmax(attention, torch.float32, shift=shift)
    assert torch.allclose(by_hand(x, None), wanted, atol=1e-6)
    scores = (q @ k.transpose(-1, -2)).tril()
    assert by_hand.top == pytest.approx(scores[scores != 0].max().item(), abs=1e-6)
    rows = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -math.inf).amax(-1)
    assert by_hand.low == pytest.approx(rows.min().item(), abs=1e-6) and by_hand.low < by_hand.top


def test_the_softmax_by_hand_overflows_in_fp16_unless_it_shifts():
    model = fresh()
    attention = model.blocks[0].attention
    with torch.no_grad():
        attention.qkv.weight.mul_(200)
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    assert not HandSoftmax(attention, torch.float16)(x, None).isfinite().all()
    assert HandSoftmax(attention, torch.float16, shift=True)(x, None).isfinite().all()


def test_a_run_is_the_same_again_and_depends_on_its_arm_rate_and_seed():
    plain = train(**FEW)
    assert plain == train(**FEW)
    for changes in (
        {"arm": "BF16 autocast"},
        {"arm": "pure BF16"},
        {"arm": "FP16 autocast"},
        {"seed": 1},
        {"lr": 2e-3},
    ):
        assert train(**FEW | changes)["losses"] != plain["losses"], changes
    assert train(**FEW, eps=1e-2)["held_out"] > plain["held_out"]


def test_weights_kept_in_bf16_stand_still_and_autocasts_do_not():
    small = {"steps": 4, "lr": 1e-4}
    for arm in ("pure BF16", "BF16 weights", "BF16 weights, rounded by lot"):
        assert train(arm, **small)["stuck"] > 0.1, arm
    assert train("BF16 autocast", **small)["stuck"] < 0.01


def test_a_fixed_scale_cancels_and_a_moving_one_skips_what_overflows():
    plain, scaled = train(**FEW), train(**FEW, scale=2.0**10)
    assert scaled["held_out"] == pytest.approx(plain["held_out"], abs=1e-5)
    assert scaled["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    high = train("FP16 autocast", **FEW, scale=2.0**40, growth_interval=10)
    assert high["skipped"] == [True] * 4 and high["scales"] == [2.0**40, 2.0**39, 2.0**38, 2.0**37]
    assert high["stuck"] == 1.0
    broken = train("FP16 autocast", **FEW, scale=2.0**40)
    assert len(broken["losses"]) == 2 and math.isnan(broken["losses"][1]) and not any(broken["skipped"])


def test_clipping_before_unscaling_sees_the_scaled_norm():
    first, last = (train(**FEW, scale=1024.0, growth_interval=100, clip_scaled=clip) for clip in (False, True))
    assert last["norms"][0] == pytest.approx(1024 * first["norms"][0], rel=1e-4)


def test_a_run_with_the_softmax_by_hand_says_what_fp16_would_lose():
    run = train(**FEW, softmax=torch.float32)
    assert run["lost_in_fp16"] == 0 and max(run["tops"]) > 0 and math.isfinite(run["held_out"])
    assert all(low <= top for low, top in zip(run["lows"], run["tops"], strict=True))


def test_gradients_come_back_at_their_true_size_whatever_the_scale():
    model, batch = fresh(), batches()[0][0]
    passed, returned = values_by_place(model, batch)
    _, scaled = values_by_place(model, batch, scale=1024.0)
    assert list(passed) == list(returned) and passed["logits"].shape == (8, 32, 256)
    assert all(torch.allclose(returned[place], scaled[place], rtol=1e-4, atol=1e-12) for place in returned)
    logits = passed["logits"].requires_grad_()
    F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
    assert torch.allclose(returned["logits"], logits.grad, atol=1e-8)
    assert loss_of(model, batch).item() == pytest.approx(math.log(256), abs=0.05)
    assert not any(module._forward_hooks for module in model.modules())


def test_pictures_say_what_became_of_a_number():
    texts = {text.get_text() for text in draw_bits(1.0, 30).axes[0].texts}
    assert {"inf, became infinite", "1.073742e+09, exact"} <= texts
    assert "0, became 0" in {text.get_text() for text in draw_bits(1.0, -30).axes[0].texts}
    figure, (left, right) = plt.subplots(1, 2)
    plot_ranges(left, {"FP16": (6e-8, 6e-5, 65504.0)}, title="range")
    assert [label.get_text() for label in left.get_yticklabels()] == ["FP16"]
    plot_powers(right, {"here": torch.ones(3)}, title="powers", low=-4, high=4)
    image = right.images[0].get_array()
    assert image[0, 4] == 1 and image.sum() == 1
    plt.close(figure)
