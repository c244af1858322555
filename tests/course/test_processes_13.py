"""Notebook 13 in several processes: the same Trainer, a loop that learns nothing, what is sent and what is held."""

import pytest

from tinytrain.course.processes_13 import exchanged, own_loop, peaks, train, train_all
from tinytrain.distributed import launch
from tinytrain.model import ModelConfig
from tinytrain.watch.planner import memory_of

SMALL = ModelConfig(vocab_size=300, d_model=32, n_layers=3, n_heads=2, max_positions=32)


@pytest.fixture(scope="module")
def alone():
    return train(0, {}, 7)


def test_a_run_saved_in_two_shares_goes_on_in_one_process(alone, tmp_path):
    cases = {"copies": ({}, 7), "saved": ({"shard": True}, 7, str(tmp_path), 6)}
    pair = launch(train_all, 2, cases, device="cpu")
    for result in pair:
        assert result["copies"]["weights"] == alone["weights"] == 2 * result["saved"]["weights"]
    first, rest = pair[0]["saved"]["losses"], train(0, {}, 7, str(tmp_path))["losses"]
    assert (list(first), list(rest)) == ([1, 2, 3, 4, 5, 6], [7])
    for step, loss in {**first, **rest}.items():
        assert loss == pytest.approx(alone["losses"][step], abs=1e-4)
        assert pair[0]["copies"]["losses"][step] == pytest.approx(alone["losses"][step], abs=1e-4)


@pytest.mark.parametrize("switch", [{"recompute": True}, {"loss_chunk": 64}, {"micro_batch_size": 8}])
def test_switches_leave_the_losses_alone(alone, switch):
    losses = train(0, switch, 4, stop_after=3)["losses"]
    assert len(losses) == 3
    for step, loss in losses.items():
        assert loss == pytest.approx(train(0, {}, 4)["losses"][step], abs=1e-5)


def test_an_optimizer_made_before_sharding_teaches_nothing():
    first, second = launch(own_loop, 2, 3, device="cpu")
    assert first["kept"] == 0
    for losses in (first, second):
        assert len(set(losses["before shard"])) == 1
        assert losses["after shard"][2] < losses["after shard"][0] == losses["before shard"][0]
    assert first["after shard"] != second["after shard"]  # each has rows of its own


def test_shares_send_more_than_copies():
    for sent in launch(exchanged, 2, 2, device="cpu"):
        assert sent["DDP"] == pytest.approx(1, abs=0.02) and sent["all-gather"] == pytest.approx(0.5, abs=0.02)
        gathers, sums = 2 * sent["all-gather"], sent["reduce-scatter"]
        assert sent["FSDP2"] == pytest.approx(gathers + sums, abs=0.05)


def test_copies_keep_the_weights_and_shares_halve_them():
    weights = ModelConfig(vocab_size=900, d_model=64, n_layers=6, n_heads=2, max_positions=4)
    cases = {"weights": (weights, 2), "rows": (SMALL, 16)}
    one = peaks(0, cases, "alone")
    for name, (config, rows) in cases.items():
        assert one[name] == pytest.approx(memory_of(config, micro_batch_size=rows).total, rel=0.03)
    copies, shares = (launch(peaks, 2, cases, way, device="cpu") for way in ("copies", "shares"))
    for copy, share in zip(copies, shares, strict=True):
        assert 0.95 * one["weights"] < copy["weights"] < 1.4 * one["weights"]
        assert share["weights"] < 0.75 * one["weights"]
        assert max(copy["rows"], share["rows"]) < 0.75 * one["rows"]
        for name, (config, rows) in cases.items():  # an estimate
            planned = memory_of(config, micro_batch_size=rows // 2, shards=2).total
            assert share[name] == pytest.approx(planned, rel=0.15)
