"""Group F: masks, padding, packing and bucketing.

The kind of fault: somebody sees what is not theirs. A later token, the padding, the document beside it in the row; or
a row that sees nothing and answers NaN. And in the batches: a document that comes twice or never, or always in the
same order. A loss curve shows none of it; replacing what must not matter, and comparing bit by bit, does.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tinytrain.attention import Masked
from tinytrain.batches import bucket, collate, pack
from tinytrain.forward import forward_logits
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

PAD = 255  # a token that no text here uses


@pytest.fixture
def model():
    """Wide weights, so that whoever sees something answers visibly."""
    torch.manual_seed(0)
    return GPT(replace(PRESETS["nano"], init_std=0.1)).eval()


def documents_of(*lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 250, (n,), generator=generator) for n in lengths]


@torch.no_grad()
def logits(model, batch):
    return forward_logits(model, batch)


def gradient(model, batch):
    report = train_step(model, [batch], build_adamw(model, lr=1.0), lr=0.0, max_grad_norm=float("inf"))
    return report, torch.cat([p.grad.flatten() for p in model.parameters()]).double()


@pytest.mark.parametrize("side", ["right", "left"])
def test_F01_a_row_that_may_look_nowhere_changes_neither_loss_nor_gradient(model, side):
    """pytorch/pytorch#103749, #110213: a softmax over nothing is 0/0."""
    q = torch.ones(1, 1, 1, 4, requires_grad=True)
    naive = (q @ q.mT + torch.tensor([-torch.inf])).softmax(-1) @ q
    assert naive.isnan().all() and torch.autograd.grad(naive.sum(), q)[0].isnan().all()
    ours = Masked(torch.tensor([[[[False]]]]))(q, q, q, 0.0)
    assert not ours.any() and not torch.autograd.grad(ours.sum(), q)[0].any()

    documents = documents_of(6, 1, 4)
    with_empty = collate(documents, pad_id=PAD, side=side)
    assert not with_empty["attention_mask"][1].any(), "one token has no target: its row is empty"
    report, g = gradient(model, with_empty)
    without, g_without = gradient(model, collate([documents[0], documents[2]], pad_id=PAD, side=side))
    assert not report.skipped and report.tokens == without.tokens == 8
    assert report.loss == pytest.approx(without.loss, rel=1e-6)
    assert g.isfinite().all() and ((g - g_without).norm() / g_without.norm()).item() <= 1e-6


def padded_three_ways():
    documents = documents_of(6, 3)
    yield collate(documents, pad_id=PAD)
    yield collate(documents, pad_id=PAD, side="left")
    yield pack(documents, 10, pad_id=PAD).batch([0])


def test_F02_what_the_padding_holds_does_not_reach_a_real_token(model):
    """pytorch/pytorch#101967: a weight of 0 does not help against NaN, so what is padded must at least be finite."""
    weights, values = torch.tensor([1.0, 0.0]), torch.tensor([1.0, torch.nan])
    assert (weights @ values).isnan()

    for batch in padded_three_ways():
        real = batch["labels"] != -100
        assert real.sum() == 7 and not real.all()
        before = logits(model, batch)[real]
        with torch.no_grad():
            kept = model.tokens.weight[PAD].clone()
            model.tokens.weight[PAD] = 1e4
            after = logits(model, batch)[real]
            model.tokens.weight[PAD] = kept
        others = torch.arange(256) != PAD  # the head is tied, so only the padding token's own score may move
        assert torch.equal(before[:, others], after[:, others])
        assert not torch.equal(before[:, PAD], after[:, PAD])


def test_F02_no_update_makes_the_padding_embedding_nan_and_a_nan_there_is_named(model):
    optimizer = build_adamw(model, lr=1e-2)
    for batch in padded_three_ways():
        assert not train_step(model, [batch], optimizer, lr=1e-2).skipped
    assert model.tokens.weight[PAD].isfinite().all()

    with torch.no_grad():
        model.tokens.weight[PAD] = torch.nan
    records = []
    config = TrainConfig(total_steps=1, max_lr=1e-2)
    Trainer(model, lambda n: [batch], config, [records.append, lambda record: False]).fit()
    assert records[0]["skipped"] and records[0]["where"] == "the weight tokens.weight holds NaN in 64 of 16384 places"


def test_F03_no_token_sees_a_later_one_whatever_a_masks_true_means_elsewhere(model):
    """pytorch/pytorch#99304: True means blocked in nn.TransformerEncoder, and allowed in SDPA."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    encoder, tril = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.ones(5, 5).tril().bool()
    x = torch.randn(1, 5, 32)
    changed = torch.cat([x[:, :3], torch.randn(1, 1, 32), x[:, 4:]], dim=1)

    def leak(mask):
        return (encoder(x, mask=mask) - encoder(changed, mask=mask))[:, :3].abs().max().item()

    assert leak(tril) > 0.1 and leak(~tril) == 0.0
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        encoder(x, is_causal=True)

    ids, ones = torch.tensor([[PAD, 10, 20, 30, 40, 50]]), torch.ones(1, 6, dtype=torch.long)
    others = ids.clone()
    others[0, 3:] = torch.tensor([31, 41, 51])
    left = (ids != PAD).long()
    for extras in ({}, {"attention_mask": ones}, {"attention_mask": left}, {"doc_ids": torch.zeros_like(ids)}):
        a, b = (logits(model, {"input_ids": tokens} | extras) for tokens in (ids, others))
        assert torch.equal(a[:, 1:3], b[:, 1:3]), list(extras)
        assert (a[:, 3:] - b[:, 3:]).abs().amax(-1).min() > 0.1, "while each token sees itself"


def pairs(model, batch):
    """How many (position, position seen by it) there are, found by changing one token after the other."""
    ids, base = batch["input_ids"], logits(model, batch)
    count = 0
    for place in range(ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] + 1) % 250
        moved = (logits(model, batch | {"input_ids": changed}) != base).any(-1)
        count += int(moved.sum())
    return count


def test_F06_a_packed_document_answers_as_if_it_were_alone(model):
    """karpathy/nanoGPT#280, huggingface/trl#805: neither the mask nor the positions are enough by themselves."""
    first, second, other = documents_of(5, 4, 5)  # 4 and 3 positions: the last token is a target only
    batch = pack([first, second], 7).batch([0])
    assert batch["doc_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    in_place = {"input_ids": torch.tensor([[PAD] * 4 + second[:-1].tolist()]), "doc_ids": batch["doc_ids"]}
    alone = logits(model, in_place)[0, 4:]
    assert torch.allclose(alone, logits(model, {"input_ids": second[None, :-1]})[0], rtol=0, atol=1e-5)

    def off(**changes):
        changed = {name: value for name, value in (batch | changes).items() if value is not None}
        return (logits(model, changed)[0, 4:] - alone).abs().max().item()

    in_row = torch.arange(7)[None]
    assert off(doc_ids=None) > 0.1, "only the positions restart"
    assert off(positions=in_row) > 0.1, "only the mask"
    assert off() == off(positions=None) == 0.0, "both; where positions are not given, they follow from doc_ids"

    assert pairs(model, batch) == 16 == 4 * 5 // 2 + 3 * 4 // 2
    assert pairs(model, {"input_ids": batch["input_ids"]}) == 28 == 7 * 8 // 2

    neighbour = pack([other, second], 7).batch([0])
    assert not torch.equal(neighbour["input_ids"][:, :4], batch["input_ids"][:, :4])
    assert torch.equal(logits(model, neighbour)[0, 4:], logits(model, batch)[0, 4:])


LENGTHS = [12, 3, 9, 25, 4, 17, 8, 31, 2, 20]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_F10_every_document_comes_once_an_epoch_padded_to_its_own_batch(seed):
    """mlcommons/training#460, lhotse-speech/lhotse#646: lengths shuffled, and looked up with the old indices."""
    shuffled = [LENGTHS[i] for i in torch.randperm(10, generator=torch.Generator().manual_seed(seed))]
    by_length = sorted(range(10), key=shuffled.__getitem__)
    assert max(shuffled[i] for i in by_length[:4]) < max(LENGTHS[i] for i in by_length[:4]), "a row that does not fit"

    given, documents = LENGTHS.copy(), documents_of(*LENGTHS)
    batches = bucket(given, 4, seed=seed)
    assert given == LENGTHS, "the caller's list is as it was"
    assert len(batches) == 3 and sorted(map(len, batches)) == [2, 4, 4]
    assert sorted(i for batch in batches for i in batch) == list(range(10))
    for batch in batches:
        padded = collate([documents[i] for i in batch], pad_id=PAD)
        assert padded["input_ids"].shape[1] == max(LENGTHS[i] for i in batch) - 1


def rank_correlation(values):
    """Spearman's rho between values and their places; for values without ties."""
    ranks = torch.tensor(values).argsort().argsort().double()
    return torch.corrcoef(torch.stack([ranks, torch.arange(len(values)).double()]))[0, 1].item()


def test_F11_batches_do_not_come_from_short_to_long_and_each_epoch_has_its_own_order():
    """lhotse-speech/lhotse#364: sorted once, the loss is a saw."""
    lengths = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    alike = [sorted(lengths)[i : i + 8] for i in range(0, 64, 8)]
    assert rank_correlation([max(batch) for batch in alike]) == pytest.approx(1.0)

    epochs = [bucket(lengths, 8, seed=1, epoch=epoch) for epoch in range(40)]
    assert epochs == [bucket(lengths, 8, seed=1, epoch=epoch) for epoch in range(40)], "the same when asked again"
    assert epochs[0] != epochs[1] and epochs[0] != bucket(lengths, 8, seed=2)
    rho = [rank_correlation([max(lengths[i] for i in batch) for batch in batches]) for batches in epochs]
    assert {len(batches) for batches in epochs} == {8}
    assert abs(rho[0]) < 0.5 and abs(rho[1]) < 0.5
    assert abs(sum(rho) / 40) < 0.25, "chance has a spread of 0.06 here"


@pytest.mark.parametrize("kind", [torch.bool, torch.long])
def test_F13_a_mask_of_ones_says_nothing_and_changes_nothing(model, kind):
    """huggingface/transformers#46634: with a mask given, packed rows were no longer noticed."""
    packed = pack(documents_of(5, 4, 6, 3), 8)
    batch = packed.batch(range(len(packed)))
    plain = {"input_ids": batch["input_ids"]}
    assert not torch.equal(logits(model, batch), logits(model, plain)), "so it would show"
    without_positions = {name: tensor for name, tensor in batch.items() if name != "positions"}
    for b in (batch, without_positions, plain):
        ones = torch.ones_like(b["input_ids"], dtype=kind)
        assert torch.equal(logits(model, b), logits(model, b | {"attention_mask": ones}))
