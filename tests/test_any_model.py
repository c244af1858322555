"""Any language model can be trained: what it returns, what it takes, and who wrote it does not matter."""

import math
import os
import socket
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinytrain.batches import collate, pack
from tinytrain.data import RowBatches, TokenRows
from tinytrain.generate import generate
from tinytrain.runlog import read_run
from tinytrain.step import evaluate
from tinytrain.train import TrainConfig, Trainer
from tinytrain.weights import export_weights, load_weights

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # read when transformers is imported, further down

V, T, UPDATES, STOP = 61, 16, 9, 6
OF_THE_MACHINE = {"tokens_per_second", "seconds_data", "seconds_step", "memory_bytes"}
ROWS = TokenRows(torch.randint(0, V, (24 * T + 1,), generator=torch.Generator().manual_seed(2)), T, vocab_size=V)


class Returns(nn.Module):
    """A causal model: the mean of what has been read so far, and dropout. ``kind`` is what it returns."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.tokens, self.dropout, self.head = nn.Embedding(V, 32), nn.Dropout(0.1), nn.Linear(32, V)
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, input_ids):
        x = self.tokens(input_ids)
        x = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        logits = self.head(self.dropout(x))
        return {"tensor": logits, "dict": {"logits": logits}, "object": SimpleNamespace(logits=logits)}[self.kind]


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": V, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 32}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, attention_dropout=0.1, bos_token_id=None, eos_token_id=None))


HUGGING_FACE = {"GPT2LMHeadModel": gpt2, "LlamaForCausalLM": llama}
MODELS = {kind: lambda kind=kind: Returns(kind) for kind in ("tensor", "dict", "object")} | HUGGING_FACE

any_model = pytest.mark.parametrize("name", MODELS)
any_hugging_face_model = pytest.mark.parametrize("name", HUGGING_FACE)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*where, **_):
        raise AssertionError(f"a test of models asked the network for {where}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def make(name, seed=7):
    torch.manual_seed(seed)
    return MODELS[name]()


def trainer_of(name, folder, stop=None):
    config = TrainConfig(total_steps=UPDATES, max_lr=1e-2, eval_every=3, out=folder, checkpoint_every=4)
    data = RowBatches(rows=ROWS, batch_size=8, micro_batch_size=3, seed=3)
    callbacks = [lambda record: record["batch"] != stop]
    return Trainer(make(name), data, config, callbacks, validation=list(ROWS.batches(8, limit=8)))


def result(trainer, folder):
    """Everything about a run that has to be the same, by name; copied, for training goes on in place."""
    named = {f"weight {name}": p.detach().clone() for name, p in trainer.model.named_parameters()}
    for name, p in trainer.model.named_parameters():
        named |= {f"{part} {name}": value.clone() for part, value in trainer.optimizer.state[p].items()}
    log = [{name: v for name, v in record.items() if name not in OF_THE_MACHINE} for record in read_run(folder)]
    return named | {"log": log}


def differences(a, b):
    same = {n: torch.equal(a[n], b[n]) if isinstance(a[n], torch.Tensor) else a[n] == b[n] for n in a.keys() & b.keys()}
    return sorted(name for name in a | b if not same.get(name))


@any_model
def test_trained_stopped_and_resumed_it_is_the_uninterrupted_run(name, tmp_path):
    uninterrupted = trainer_of(name, tmp_path / "a")
    uninterrupted.fit()
    stopped = trainer_of(name, tmp_path / "b", stop=STOP)
    assert stopped.fit().steps == STOP
    resumed = trainer_of(name, tmp_path / "b")
    assert resumed.resume().step == STOP
    assert resumed.fit().steps == UPDATES

    expected = result(uninterrupted, tmp_path / "a")
    assert differences(result(resumed, tmp_path / "b"), expected) == []
    changed = differences(result(stopped, tmp_path / "b"), expected)
    assert all(f"weight {part}" in changed for part, _ in stopped.model.named_parameters()), "they go on after the stop"
    assert {p.dtype for p in resumed.model.parameters()} == {torch.float32}
    assert len(expected["log"]) == UPDATES and sum("eval_loss" in line for line in expected["log"]) == 3


@any_model
def test_dropout_is_on_in_training_and_off_in_evaluation(name):
    model, batches = make(name), list(ROWS.batches(8, limit=8))
    ids = batches[0]["input_ids"]
    first, second = (logits_by_hand(model.train(), ids) for _ in range(2))
    assert not torch.equal(first, second)
    found = evaluate(model, batches)
    assert model.training
    assert found == evaluate(model.eval(), batches)


def logits_by_hand(model, ids):
    output = model(ids)
    return getattr(output, "logits", output["logits"] if isinstance(output, dict) else output)


@any_model
def test_the_first_loss_is_that_of_guessing_and_training_lowers_it(name, tmp_path):
    trainer = trainer_of(name, tmp_path)
    trainer.fit()
    log = list(read_run(tmp_path))
    assert log[0]["loss"] == pytest.approx(math.log(V), abs=0.1)
    assert log[-1]["eval_loss"] < log[2]["eval_loss"] < math.log(V) + 0.1


@any_model
def test_an_evaluation_is_the_mean_over_all_targets_computed_by_hand(name):
    model, batches = make(name).eval(), list(ROWS.batches(5))
    with torch.no_grad():
        losses = [token_losses(model, batch["input_ids"], batch["labels"]) for batch in batches]
    found = evaluate(model, batches)
    assert found.tokens == sum(len(part) for part in losses) == len(ROWS) * T
    assert found.loss == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)


def token_losses(model, ids, labels):
    return F.cross_entropy(logits_by_hand(model, ids).flatten(0, 1), labels.flatten(), reduction="none")


@any_model
def test_a_padded_batch_has_the_loss_of_its_documents_alone(name):
    """Models without a mask included: they are causal, and the padding is on the right."""
    model, generator = make(name).eval(), torch.Generator().manual_seed(5)
    documents = [torch.randint(0, V, (n,), generator=generator) for n in (3, 17, 9, 1, 12)]
    batch = collate(documents, pad_id=0)
    with torch.no_grad():
        alone = [token_losses(model, d[None, :-1], d[None, 1:]) for d in documents if len(d) > 1]
    assert "attention_mask" in batch and not batch["attention_mask"].all()
    found = evaluate(model, [batch])
    assert found.tokens == sum(len(d) - 1 for d in documents)
    assert found.loss == pytest.approx(torch.cat(alone).mean().item(), abs=1e-5)


@any_hugging_face_model
def test_a_model_that_takes_a_mask_does_not_see_the_padding_on_either_side(name):
    model, mask = make(name).eval(), torch.ones(1, T, dtype=torch.bool)
    mask[0, :4] = False
    ids = ROWS[0]["input_ids"][None]
    other = torch.where(mask, ids, (ids + 1) % V)
    batches = [{"input_ids": i, "labels": ids.where(mask, -100), "attention_mask": mask} for i in (ids, other)]
    assert evaluate(model, batches[:1]) == evaluate(model, batches[1:])
    assert evaluate(model, [batches[0] | {"attention_mask": mask | True}]) != evaluate(model, batches[:1])


@any_hugging_face_model
def test_positions_of_the_batch_reach_the_model(name):
    """Llama looks at distances only, so the positions are stretched and not moved."""
    model, batch = make(name).eval(), {part: rows[None] for part, rows in ROWS[0].items()}
    counted, stretched = (batch | {"positions": step * torch.arange(T)[None]} for step in (1, 2))
    assert evaluate(model, [counted]).loss == pytest.approx(evaluate(model, [batch]).loss, abs=1e-6)
    assert evaluate(model, [stretched]).loss != pytest.approx(evaluate(model, [batch]).loss, abs=1e-6)


@any_model
def test_packed_rows_are_refused_by_a_model_that_knows_no_documents(name, tmp_path):
    packed = pack([[1, 2, 3, 4], [5, 6, 7]], 8).batch([0])
    trainer = Trainer(make(name), [[packed]], TrainConfig(total_steps=1, max_lr=1e-2))
    named = type(trainer.model).__name__
    with pytest.raises(ValueError, match=rf"{named}\.forward takes no doc_ids \[1, 8\].*pad instead of packing"):
        trainer.fit()


@any_hugging_face_model
def test_the_labels_are_shifted_once_and_the_model_never_gets_them(name, tmp_path):
    """Given labels, a Hugging Face model computes a loss of its own, of the token after the next."""
    trainer, seen = trainer_of(name, tmp_path), []
    note = trainer.model.register_forward_pre_hook(lambda _, args, given: seen.append((args, given)), with_kwargs=True)
    trainer.fit()
    note.remove()
    assert len(seen) > UPDATES
    assert all(len(args) == 1 and given.get("labels") is None for args, given in seen)

    model, batch = trainer.model.eval(), next(iter(ROWS.batches(8)))
    with torch.no_grad():
        once = token_losses(model, batch["input_ids"], batch["labels"]).mean().item()
        twice = model(batch["input_ids"], labels=batch["labels"]).loss.item()
    assert evaluate(model, [batch]).loss == pytest.approx(once, abs=1e-5)
    assert abs(once - twice) > 0.1, "trained on one shift, the other must look worse"


@any_model
def test_it_generates_and_stays_in_training_mode(name):
    model = make(name)
    a, b = (generate(model, torch.tensor([[1, 2, 3]]), 5, seed=1) for _ in range(2))
    assert a.shape == (1, 8) and torch.equal(a, b) and model.training


@any_hugging_face_model
def test_it_generates_beyond_its_window(name):
    assert generate(make(name), torch.tensor([[1, 2, 3]]), 40).shape == (1, 43)


@any_hugging_face_model
def test_the_likeliest_text_is_what_hugging_face_generates_itself(name):
    model, ids = make(name).eval(), torch.tensor([[1, 2, 3]])
    theirs = model.generate(ids, attention_mask=ids > 0, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(generate(model, ids, 6, temperature=0), theirs)


@any_model
def test_exported_weights_are_those_that_come_back_and_tied_ones_are_tied_again(name, tmp_path):
    model, other = make(name), make(name, seed=8)
    export_weights(model, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    own, loaded = model.state_dict(), other.state_dict()
    assert own.keys() == loaded.keys() and all(torch.equal(own[part], loaded[part]) for part in own)
    if name == "GPT2LMHeadModel":
        assert {"lm_head.weight", "transformer.wte.weight"} <= own.keys()
        assert other.lm_head.weight is other.transformer.wte.weight
        with torch.no_grad():
            other.lm_head.weight.zero_()
        assert not other.transformer.wte.weight.any()
