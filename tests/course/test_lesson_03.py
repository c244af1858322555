import pytest
import torch
import torch.nn.functional as F

from tinytrain.course import lesson_03
from tinytrain.course.lesson_03 import DeepGPT, PostBlock, reading, train_all, train_branches, train_deep
from tinytrain.watch.preflight import future_leak


def test_one_seed_gives_pre_and_post_the_same_matrices():
    pre, post, other = DeepGPT("pre", seed=3), DeepGPT("post", seed=3), DeepGPT("post", seed=4)
    weights = dict(post.named_parameters())
    for name, parameter in pre.named_parameters():
        if parameter.dim() >= 2:
            assert torch.equal(parameter, weights[name]), name
    assert not torch.equal(post.tokens.weight, other.tokens.weight)


def test_building_a_network_draws_nothing_for_its_weights_from_the_global_generator():
    torch.manual_seed(0)
    first = DeepGPT("post", seed=3, n_layers=1)
    torch.manual_seed(1)
    assert torch.equal(
        first.blocks[0].attention.qkv.weight, DeepGPT("post", seed=3, n_layers=1).blocks[0].attention.qkv.weight
    )


def test_the_tied_head_stays_tied():
    model = DeepGPT("post", seed=0)
    assert model.head.weight is model.tokens.weight


def test_post_ln_normalises_the_stream_behind_each_half():
    block = DeepGPT("post", seed=0, n_layers=1).blocks[0]
    assert isinstance(block, PostBlock)
    x = torch.randn(2, 5, 64)

    def attend(q, k, v, dropout):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    middle = F.layer_norm(x + block.attention(x, attend), (64,))
    wanted = F.layer_norm(middle + block.feed_forward(middle), (64,))
    torch.testing.assert_close(block(x, attend), wanted)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_neither_network_sees_the_future(norm):
    rows = torch.randint(0, 256, (2, 16))
    assert future_leak(DeepGPT(norm, seed=0, n_layers=2), rows, mode="train") == 0.0


def test_another_place_for_the_norm_is_refused():
    with pytest.raises(ValueError, match="norm='sandwich'"):
        DeepGPT("sandwich", seed=0)


def test_a_model_that_says_the_same_everywhere_does_not_read():
    model = DeepGPT("post", seed=0, n_layers=1)
    assert reading(model) > 0.05
    with torch.no_grad():
        model.blocks[-1].feed_forward_norm.weight.zero_()  # the same stream at every place
    assert reading(model) == pytest.approx(0.0, abs=1e-6)


SHORT = {"norm": "pre", "max_lr": 1e-2, "warmup_steps": 2, "total_steps": 6, "n_layers": 1}


def test_a_run_repeats_bit_for_bit_and_another_seed_is_another_run():
    first = train_deep(**SHORT)
    assert first == train_deep(**SHORT)
    assert first["losses"] != train_deep(**SHORT, seed=1)["losses"]
    assert first["losses"][-1] < first["losses"][0]


@pytest.mark.parametrize(
    ("changed", "lrs"),
    [
        ({}, [0.005, 0.01, 0.01, 0.0086820, 0.0055, 0.0023180]),
        ({"min_share": 0.0, "floor_share": 0.2}, [0.005, 0.01, 0.01, 0.0085355, 0.005, 0.002]),
        ({"decay_steps": 2, "min_share": 0.5}, [0.005, 0.01, 0.01, 0.01, 0.01, 0.0075]),
    ],
)
def test_the_schedule_is_the_one_asked_for(changed, lrs):
    assert train_deep(**SHORT | changed)["lrs"] == pytest.approx(lrs, abs=1e-7)


def test_filling_the_moments_moves_no_weight_but_changes_the_run():
    plain, filled = train_deep(**SHORT), train_deep(**SHORT, filled=3)
    assert filled["losses"][0] == plain["losses"][0]
    assert filled["losses"][1] != plain["losses"][1]


def test_a_branch_equals_the_run_that_had_planned_its_end():
    branches = train_branches(1e-2, 2, 2, (5, 8), n_layers=1)
    for end, loss in branches["held_out"].items():
        planned = train_deep("pre", 1e-2, 2, end, decay_steps=2, n_layers=1)
        assert loss == planned["held_out"]
    assert branches["updates"] == 6 + 2 + 2  # the level run, and two decays


def test_a_run_is_made_once_and_results_keep_the_order_of_cases_and_seeds(monkeypatch):
    asked = []

    def run_many(function, settings):
        asked.append(len(settings))
        return [f"{each['norm']} {each['seed']}" for each in settings]

    monkeypatch.setattr(lesson_03, "run_many", run_many)
    monkeypatch.setattr(lesson_03, "_made", {})
    monkeypatch.setenv("TINYTRAIN_BUDGET", "laptop")
    cases = [{"norm": "pre"}, {"norm": "post"}]
    assert train_all(cases[:1], seeds=[1], total_steps=3) == [["pre 1"]]
    assert train_all(cases, seeds=[0, 1], total_steps=3) == [["pre 0", "pre 1"], ["post 0", "post 1"]]
    assert train_all(cases, seeds=[0], total_steps=4) == [["pre 0"], ["post 0"]]
    assert train_all(cases, seeds=[1], total_steps=3) == [["pre 1"], ["post 1"]]
    assert asked == [1, 3, 2]


def test_post_ln_has_no_last_norm():
    norms = {
        where: [m for m in DeepGPT(where, seed=0).modules() if isinstance(m, torch.nn.LayerNorm)]
        for where in ("pre", "post")
    }
    assert {where: len(found) for where, found in norms.items()} == {"pre": 13, "post": 12}
