import copy
import math
from dataclasses import replace

import pytest
import torch

from tinytrain.attention import Causal
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig

NANO = PRESETS["nano"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(NANO)


def random_ids(*shape, seed=0):
    return torch.randint(0, NANO.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def count_by_hand(c: ModelConfig) -> int:
    attention = 3 * c.d_model**2 + 3 * c.d_model + c.d_model**2 + c.d_model
    feed_forward = 4 * c.d_model**2 + 4 * c.d_model + 4 * c.d_model**2 + c.d_model
    norm = 2 * c.d_model
    block = attention + feed_forward + 2 * norm
    return c.vocab_size * c.d_model + c.max_positions * c.d_model + c.n_layers * block + norm


@pytest.mark.parametrize(("preset", "count"), [("nano", 120_576), ("27m", 29_125_632), ("120m", 108_489_216)])
def test_the_parameter_count_is_that_of_the_arithmetic(preset, count):
    assert count_by_hand(PRESETS[preset]) == count
    assert GPT(PRESETS[preset]).num_parameters() == count


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_builds_without_memory_and_has_the_counted_size(preset):
    with torch.device("meta"):
        assert GPT(PRESETS[preset]).num_parameters() == count_by_hand(PRESETS[preset])


def test_the_head_is_the_embedding():
    model = GPT(NANO)
    assert model.head.weight is model.tokens.weight


def test_the_initial_loss_is_near_ln_v(model):
    loss = cross_entropy(model(random_ids(8, 64)), random_ids(8, 64, seed=1)).item()
    assert loss == pytest.approx(math.log(256), abs=0.05)


def test_residual_outputs_start_smaller_by_the_root_of_their_number():
    torch.manual_seed(0)
    model = GPT(replace(NANO, d_model=256, n_layers=8))
    block = model.blocks[0]
    expected = 0.02 / math.sqrt(16)
    for out in (block.attention.out, block.feed_forward.out):
        assert out.weight.std().item() == pytest.approx(expected, rel=0.02)
    assert block.feed_forward.inner.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_a_later_token_moves_no_earlier_logit(model):
    ids = random_ids(2, 20)
    changed = ids.clone()
    changed[:, 12] = (changed[:, 12] + 1) % NANO.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.equal(before[:, 12:], after[:, 12:])


def test_right_padding_moves_no_real_logit(model):
    ids, mask = random_ids(2, 20), torch.ones(2, 20, dtype=torch.bool)
    mask[0, 15:] = False
    other = torch.where(mask, ids, random_ids(2, 20, seed=9))
    assert torch.equal(model(ids, attention_mask=mask)[mask], model(other, attention_mask=mask)[mask])
    unmasked = model(ids)
    assert torch.allclose(model(ids, attention_mask=mask)[mask], unmasked[mask], atol=1e-5)


def test_left_padding_counts_positions_from_the_first_real_token(model):
    ids = random_ids(1, 10)
    padded = torch.cat([random_ids(1, 6, seed=5), ids], dim=1)
    mask = torch.cat([torch.zeros(1, 6), torch.ones(1, 10)], dim=1)
    assert torch.allclose(model(padded, attention_mask=mask)[:, 6:], model(ids), atol=1e-5)


def test_a_row_of_nothing_but_padding_is_finite_and_touches_no_other_row(model):
    ids, mask = random_ids(2, 8), torch.ones(2, 8)
    mask[0] = 0
    logits = model(ids, attention_mask=mask)
    assert logits.isfinite().all()
    assert torch.allclose(logits[1], model(ids[1:])[0], atol=1e-5)


def test_dropout_is_drawn_in_training_and_not_in_evaluation():
    torch.manual_seed(0)
    model = GPT(replace(NANO, dropout=0.5))
    ids = random_ids(1, 8)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("bad", [-1, 256])
def test_an_id_outside_the_vocabulary_is_named(model, bad):
    ids = random_ids(2, 8)
    ids[1, 3] = bad
    with pytest.raises(ValueError, match=rf"token id {bad} at position \[1, 3\] is outside the vocabulary 0\.\.255"):
        model(ids)


def test_a_row_longer_than_the_positions_is_named(model):
    with pytest.raises(ValueError, match=r"row of 65 tokens is longer than the model's max_positions=64"):
        model(random_ids(1, 65))


def test_wrong_shapes_are_named(model):
    with pytest.raises(ValueError, match=r"shape \[8\]; they must be \[B,T\]"):
        model(random_ids(8))
    with pytest.raises(ValueError, match=r"attention_mask \[1, 7\]"):
        model(random_ids(1, 8), attention_mask=torch.ones(1, 7))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_heads": 3}, "d_model=64 is not a multiple of n_heads=3"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
    ],
)
def test_sizes_that_make_no_model_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        replace(NANO, **changed)


def test_the_head_stays_the_embedding_however_the_model_is_loaded_and_moved():
    source = GPT(NANO).state_dict()
    one_name = {name: tensor for name, tensor in source.items() if name != "head.weight"}
    ways = {
        "load": lambda m: m.load_state_dict(source),
        "load with assign": lambda m: m.load_state_dict({n: t.clone() for n, t in source.items()}, assign=True),
        "stored once": lambda m: m.load_state_dict(one_name),
        "to_empty": lambda m: m.to_empty(device="cpu"),
        "double": lambda m: m.double(),
        "deepcopy": copy.deepcopy,
    }
    for way, change in ways.items():
        model = GPT(NANO)
        changed = change(model)
        model = changed if way == "deepcopy" else model
        assert model.head.weight is model.tokens.weight, way
        assert model.num_parameters() == 120_576, way


def test_weights_stored_once_load_completely():
    source = GPT(NANO).state_dict()
    source.pop("head.weight")
    model = GPT(NANO)
    model.load_state_dict(source)
    assert torch.equal(model.head.weight, source["tokens.weight"])


@pytest.mark.parametrize("part", ["dropout", "blocks.0.dropout", "blocks.1.dropout"])
def test_each_dropout_is_there(part):
    model = GPT(replace(NANO, dropout=0.5))
    calls = []
    model.get_submodule(part).register_forward_hook(lambda *_: calls.append(1))
    assert model.get_submodule(part).p == 0.5
    model(random_ids(1, 8))
    assert len(calls) == (1 if part == "dropout" else 2)


def test_attention_weights_are_dropped_in_training_only():
    attention = GPT(replace(NANO, dropout=0.5)).blocks[0].attention
    x, causal = torch.randn(1, 8, 64), Causal()
    assert not torch.equal(attention(x, causal), attention(x, causal))
    attention.eval()
    assert torch.equal(attention(x, causal), attention(x, causal))


def test_the_feed_forward_layer_is_two_linear_maps_with_a_gelu_between():
    layer, x = GPT(NANO).blocks[0].feed_forward, torch.randn(2, 64)
    by_hand = x @ layer.inner.weight.T + layer.inner.bias
    by_hand = by_hand * 0.5 * (1 + torch.erf(by_hand / math.sqrt(2)))
    assert torch.allclose(layer(x), by_hand @ layer.out.weight.T + layer.out.bias, atol=1e-6)


def test_biases_start_at_zero_and_gains_at_one():
    for name, p in GPT(NANO).named_parameters():
        if p.dim() == 1:
            assert torch.equal(p, torch.full_like(p, 1.0 if "norm" in name and name.endswith("weight") else 0.0)), name


def test_positions_outside_the_table_and_masks_that_are_added_are_named(model):
    with pytest.raises(ValueError, match=r"positions run from 0 to 64; the model has 0\.\.63"):
        model(random_ids(1, 2), positions=torch.tensor([[0, 64]]))
    with pytest.raises(ValueError, match="is not added to scores"):
        model(random_ids(1, 2), attention_mask=torch.tensor([[0.0, -math.inf]]))
    with pytest.raises(ValueError, match=r"doc_ids \[1, 3\]"):
        model(random_ids(1, 2), doc_ids=torch.zeros(1, 3))
    with pytest.raises(ValueError, match="init_std=-1"):
        replace(NANO, init_std=-1)
