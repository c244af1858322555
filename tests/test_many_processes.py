"""The same Trainer in several processes: one model, one curve, one log."""

import math
import os
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from process_runs import (
    CONFIG,
    NO_EVALUATION,
    all_alike,
    curve,
    flat,
    largest_difference,
    nano,
    some_data,
    train,
    validation,
)

from tinytrain.distributed import LaunchError, launch, replicate, shard
from tinytrain.distributed.wrap import sharers, whole
from tinytrain.documents import DocumentBatches
from tinytrain.loss import IGNORE_INDEX
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.runlog import read_run
from tinytrain.step import evaluate, train_step
from tinytrain.train import Trainer


@pytest.fixture(scope="module")
def alone():
    return train(0)


def train_wrapped(rank, wrapped):
    return train(rank, wrapped=wrapped)


@pytest.mark.parametrize(("processes", "wrapped"), [(2, None), (3, None), (2, "sharded"), (3, "sharded")])
def test_the_curve_is_that_of_one_process(alone, processes, wrapped):
    first, *others = launch(train_wrapped, processes, wrapped)
    assert curve(first, "tokens") == curve(alone, "tokens")
    assert min(curve(alone, "grad_norm")[:3]) > CONFIG.max_grad_norm  # clipping is part of what is compared
    assert largest_difference(curve(first), curve(alone)) < 1e-6
    assert largest_difference(curve(first, "grad_norm"), curve(alone, "grad_norm")) < 1e-5
    assert curve(first, "lr") == curve(alone, "lr")
    assert curve(first, "processes") == [processes] * 12
    if wrapped is None:
        assert all(torch.equal(first["weights"], other["weights"]) for other in others)


def train_shared_out(rank, precision, recompute):
    """The losses, what kinds of numbers lie in memory between two steps, and in what kind a block computes."""
    kinds = []
    model = shard(nano(dropout=0.1), precision=precision, recompute=recompute)
    model.blocks[0].register_forward_hook(lambda _m, inputs, _out: kinds.append(inputs[0].dtype))
    losses = []
    Trainer(model, some_data(), NO_EVALUATION, [lambda record: losses.append(record["loss"])]).fit()
    return losses, {p.dtype for p in model.parameters()}, kinds[-1]


def test_a_sharded_model_may_compute_in_half_precision_and_keep_less():
    plain = launch(train_shared_out, 2, "fp32", False)[0]
    assert launch(train_shared_out, 2, "fp32", True)[0] == plain
    losses, kept, computed = launch(train_shared_out, 2, "bf16", True)[0]
    assert (kept, computed) == ({torch.float32}, torch.bfloat16)
    assert 1e-6 < largest_difference(losses, plain[0]) < 0.02


def train_and_count_sums(rank):
    """How many sums over the processes each update waited for, gradients not counted."""
    sums, seen, all_reduce = [], [], dist.all_reduce

    def counted(*arguments, **named):
        if not named.get("async_op"):
            sums.append(arguments[0].numel())
        return all_reduce(*arguments, **named)

    dist.all_reduce = counted
    model = nano()
    trainer = Trainer(model, some_data(), NO_EVALUATION)
    trainer.optimizer.register_step_post_hook(lambda *_: seen.append(len(sums)))
    trainer.fit()
    return [after - before for before, after in pairwise(seen)]


def test_an_update_takes_three_sums_over_the_processes():
    """Its counts, its loss, and whether any process wants to stop."""
    assert launch(train_and_count_sums, 2) == [[3] * 11] * 2


def test_the_copies_are_bit_identical_after_every_update():
    assert [result["alike"] for result in launch(train, 2)] == [[True] * 12] * 2


def test_process_0_alone_runs_the_callbacks_and_writes_the_log(tmp_path):
    first, second = launch(train, 2, replace(CONFIG, out=tmp_path))
    assert (len(first["records"]), len(second["records"])) == (12, 0)
    run = read_run(tmp_path)
    assert [record["batch"] for record in run] == list(range(1, 13))
    assert all(record["seconds_communication"] >= 0 for record in run)


def test_a_callback_that_says_no_ends_the_run_in_all_processes():
    reports = [result["report"] for result in launch(run_until, 2, 5)]
    assert [(report.steps, report.stopped_by) for report in reports] == [(5, "callback")] * 2


def run_until(rank, batch):
    return train(rank, stop_at=batch)


def interrupted_in_process_1(rank):
    """An interrupt of one process only, in the middle of its third batch."""
    data = some_data()

    class Data:
        def share(self, batch, **who):
            if rank == 1 and batch == 2:
                os.kill(os.getpid(), 2)
            return data.share(batch, **who)

    return Trainer(nano(), Data(), CONFIG, validation=validation()).fit()


def test_an_interrupt_of_one_process_ends_the_run_in_all_after_the_same_update():
    assert [(r.steps, r.stopped_by) for r in launch(interrupted_in_process_1, 2)] == [(3, "interrupt")] * 2


def exact_evaluation(rank):
    model = replicate(nano())
    batches = validation()
    mine = batches[rank::2] if rank == 0 else [*batches[rank::2], empty_like(batches[0])]
    return evaluate(model, mine)


def empty_like(batch):
    return batch | {"labels": torch.full_like(batch["labels"], IGNORE_INDEX)}


def test_an_evaluation_over_all_processes_is_the_one_of_one_process(alone):
    wanted = evaluate(nano(), validation())
    for found in launch(exact_evaluation, 2):
        assert found.tokens == wanted.tokens
        assert abs(found.loss - wanted.loss) < 1e-6
    first = launch(train, 2)[0]["records"][4]
    assert abs(first["eval_loss"] - alone["records"][4]["eval_loss"]) < 1e-6


class Ragged:
    """5 rows for 2 or 3 processes, in one piece, in two or in three, some of them without targets."""

    def __getitem__(self, batch):
        pieces = some_data(batch_size=5, micro_batch_size=(5, 3, 2)[batch % 3])[batch]
        pieces[0]["labels"][: batch % 4, 2:] = IGNORE_INDEX
        return pieces


def train_ragged(rank, wrapped=None):
    return train(rank, data=Ragged(), wrapped=wrapped)


@pytest.mark.parametrize(("processes", "wrapped"), [(2, None), (3, None), (2, "sharded")])
def test_unequal_shares_train_as_one_process_does(processes, wrapped):
    wanted = train_ragged(0)
    found = launch(train_ragged, processes, wrapped)[0]
    assert curve(found, "tokens") == curve(wanted, "tokens")
    assert largest_difference(curve(found), curve(wanted)) < 1e-6


def train_documents(rank, way):
    generator = torch.Generator().manual_seed(0)
    documents = [torch.randint(0, 256, (2 + 5 * (n % 7),), generator=generator) for n in range(40)]
    data = DocumentBatches(
        documents=documents, row_length=16, batch_size=8, micro_batch_size=2, vocab_size=256, way=way
    )
    return train(rank, data=data) | {"batches": data.batches_per_epoch}


@pytest.mark.parametrize("way", ["random", "packed"])
def test_documents_are_shared_out_and_their_padding_is_that_of_all_processes(way):
    wanted, found = train_documents(0, way), launch(train_documents, 2, way)[0]
    assert curve(found, "tokens") == curve(wanted, "tokens")
    assert largest_difference(curve(found), curve(wanted)) < 1e-6
    if way == "packed":  # rows of one length: whole batches have the same padding however they are dealt out
        n = found["batches"] - 1
        assert curve(found, "padding")[:n] == pytest.approx(curve(wanted, "padding")[:n], abs=1e-12)
        assert max(curve(found, "padding")[:n]) > 0.01


def first_masks(rank):
    """What dropout does to ones in the first forward pass, and what Python and NumPy draw."""
    import random

    import numpy as np

    random.seed(1)
    np.random.seed(1)
    seen = []

    class Watched(GPT):
        def _embed(self, input_ids):
            if self.training:
                seen.append((torch.nn.functional.dropout(torch.ones(64), 0.5), random.random(), np.random.rand()))
            return super()._embed(input_ids)

    torch.manual_seed(0)
    Trainer(Watched(PRESETS["nano"]), some_data(), replace(NO_EVALUATION, total_steps=1, warmup_steps=0)).fit()
    return seen[0]


def test_dropout_differs_from_process_to_process_and_process_0_draws_as_one_process_does():
    (mask_0, *others_0), (mask_1, *others_1) = launch(first_masks, 2)
    assert not torch.equal(mask_0, mask_1)
    assert torch.equal(mask_0, first_masks(0)[0])
    assert others_0 == others_1  # data that draws from them comes out the same everywhere


def different_runs(rank):
    return Trainer(nano(), some_data(seed=rank), NO_EVALUATION).fit()


def test_processes_that_were_given_different_data_are_refused():
    with pytest.raises(LaunchError, match=r"processes 0 and 1 were given different runs: data\.seed: 0 and 1"):
        launch(different_runs, 2)


def with_other_weights(rank, wrap):
    torch.manual_seed(rank)
    wrapped = wrap(GPT(PRESETS["nano"]))
    wanted = nano()
    return all(torch.equal(whole(a), b) for a, b in zip(wrapped.parameters(), wanted.parameters(), strict=True))


@pytest.mark.parametrize("wrap", [replicate, shard])
def test_weights_that_began_differently_are_those_of_process_0(wrap):
    assert launch(with_other_weights, 2, wrap) == [True, True]


def exchanges_of_a_sharded_step(rank):
    """How often gradients are summed in one update, with one micro-batch and with four."""
    counts = []

    def counting(original):
        def counted(*arguments, **named):
            counts[-1] += 1
            return original(*arguments, **named)

        return counted

    for name in {"reduce_scatter_single", "reduce_scatter_tensor"} & set(
        dir(dist)
    ):  # the name depends on torch's version
        setattr(dist, name, counting(getattr(dist, name)))
    model = shard(nano())
    optimizer = build_adamw(model, lr=1e-3)
    for size in (4, 1):
        counts.append(0)
        train_step(model, some_data(micro_batch_size=size).share(0, rank=rank, processes=2), optimizer, lr=1e-3)
    return counts


def test_a_sharded_model_exchanges_gradients_with_the_last_micro_batch_only():
    (one, four), _ = launch(exchanges_of_a_sharded_step, 2)
    assert one == four > 0


def an_idle_weight(rank, find):
    model = nano()
    model.never_used = torch.nn.Linear(3, 3)
    wrapped = replicate(model, find_unused_parameters=find)
    optimizer = build_adamw(model, lr=1e-3)
    for batch in range(2):
        train_step(wrapped, some_data().share(batch, rank=rank, processes=2), optimizer, lr=1e-3)
    return all_alike(flat(model))


def test_a_weight_that_takes_no_part_is_named():
    with pytest.raises(LaunchError, match=r"2 trainable weights took no part.*never_used\.weight, never_used\.bias"):
        launch(an_idle_weight, 2, False)
    assert launch(an_idle_weight, 2, True) == [True, True]


# Small parts.


def compiled_step(rank, wrap, processes):
    model = nano()
    wrapped = torch.compile(wrap(model) if wrap else model, backend="eager")
    optimizer = build_adamw(model, lr=1e-3)
    share = some_data(batch_size=7).share(0, rank=rank, processes=processes)
    report = train_step(wrapped, share, optimizer, lr=1e-3)
    return sharers(wrapped), report.loss, report.tokens, report.grad_norm


@pytest.mark.parametrize("wrap", [replicate, shard])
def test_a_compiled_model_knows_that_it_is_shared(wrap):
    _, *wanted = compiled_step(0, None, 1)
    for processes, *found in launch(compiled_step, 2, wrap, 2):
        assert processes == 2
        assert found == pytest.approx(wanted, rel=1e-6)


class Running(GPT):
    """Keeps a running mean of what it has seen in training, and adds it to what it says."""

    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, input_ids):
        if self.training:
            self.mean.add_(input_ids.float().mean() / 1000)
        return super().forward(input_ids) * (1 + self.mean)


def evaluated_with_buffers(rank, wrapped):
    torch.manual_seed(0)
    model = Running(PRESETS["nano"])
    records = []
    Trainer(shard(model) if wrapped else model, some_data(), CONFIG, [records.append], validation=validation()).fit()
    if wrapped:
        return model.mean.item(), 0.0, 0.0
    return model.mean.item(), records[-1]["eval_loss"] if records else None, evaluate(model, validation()).loss


def test_an_evaluation_is_of_one_model_though_each_process_has_seen_other_batches():
    (mean, told, measured), (other_mean, *_) = launch(evaluated_with_buffers, 2, False)
    assert mean == other_mean > 0
    assert told == pytest.approx(measured, rel=1e-6)
    (mean, *_), (other_mean, *_) = launch(evaluated_with_buffers, 2, True)
    assert mean == other_mean > 0


def on_another_device(rank, wrap):
    wrap(nano().to("meta"))


@pytest.mark.parametrize("wrap", [replicate, shard])
def test_a_model_that_is_not_where_the_processes_talk_is_refused(wrap):
    with pytest.raises(LaunchError, match=r"the model is on meta, and the processes exchange what is on cpu \(gloo\)"):
        launch(on_another_device, 2, wrap)


def bare_inside_a_group(rank):
    model = nano()
    report = train_step(model, some_data()[rank], build_adamw(model, lr=1e-3), lr=1e-3)
    return sharers(model), report.loss


def test_a_model_that_is_not_wrapped_is_trained_by_its_process_alone():
    (one, loss_0), (_, loss_1) = launch(bare_inside_a_group, 2)
    assert one == 1 and loss_0 != loss_1 and math.isfinite(loss_0)
