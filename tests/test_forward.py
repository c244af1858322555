import functools
import gc
import inspect
import weakref
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch import nn

from tinytrain.batches import collate, pack
from tinytrain.forward import fitted, forward_logits, logits_of
from tinytrain.model import GPT, PRESETS

LOGITS = torch.ones(1, 2, 3)


@pytest.mark.parametrize("output", [LOGITS, {"logits": LOGITS}, SimpleNamespace(logits=LOGITS)])
def test_logits_are_found_in_a_tensor_a_dict_and_an_object(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize("output", [{"loss": LOGITS}, None, (LOGITS,)])
def test_an_output_without_logits_is_refused(output):
    with pytest.raises(TypeError, match=rf"returned {type(output).__name__}, in which no logits were found"):
        logits_of(output)


def test_a_table_that_is_too_small_is_explained_by_what_the_batch_holds():
    with pytest.raises(IndexError) as raised:
        forward_logits(nn.Embedding(5, 5), {"input_ids": torch.tensor([[1, 7, 2]])})
    assert "go from 1 to 7, 3 in a row" in raised.value.__notes__[0]


def test_the_model_gets_everything_but_the_labels_by_name():
    class Spy(nn.Module):
        def forward(self, input_ids, **extras):
            self.seen = {"input_ids": input_ids} | extras
            return LOGITS

    spy, batch = Spy(), {name: torch.zeros(1, 2) for name in ("input_ids", "labels", "attention_mask")}
    forward_logits(spy, batch)
    assert set(spy.seen) == {"input_ids", "attention_mask"}


def spy(parameters):
    """A model whose forward takes these parameters and keeps what it was given in ``seen``."""

    class Spy(nn.Module):
        pass

    names = [p.split("=")[0].strip(" *") for p in parameters.split(",") if p.strip(" *")]
    given = ", ".join(f"{name}={name}" for name in names if name != "kwargs")
    spread = ", **kwargs" if "kwargs" in names else ""
    scope = {"logits": LOGITS}
    exec(f"def forward(self, {parameters}):\n    self.seen = dict({given}{spread})\n    return logits", scope)
    Spy.forward = scope["forward"]
    return Spy()


IDS = torch.tensor([[1, 2]])
RIGHT, LEFT, NONE = torch.tensor([[1, 0]]), torch.tensor([[0, 1]]), torch.tensor([[1, 1]])


@pytest.mark.parametrize("mask", [NONE, RIGHT, RIGHT.bool(), RIGHT.float(), torch.tensor([[0, 0]])])
def test_a_mask_that_a_causal_model_does_not_need_stays_here_if_the_model_takes_none(mask):
    model = spy("input_ids")
    assert forward_logits(model, {"input_ids": IDS, "attention_mask": mask}) is LOGITS
    assert list(model.seen) == ["input_ids"]


@pytest.mark.parametrize("mask", [NONE, RIGHT, LEFT, RIGHT.to("meta")])
@pytest.mark.parametrize(
    "parameters", ["input_ids, attention_mask=None", "input_ids, *, attention_mask", "x, **kwargs"]
)
def test_a_model_that_takes_a_mask_gets_every_mask(parameters, mask):
    model = spy(parameters)
    forward_logits(model, {"input_ids": IDS, "attention_mask": mask})
    assert model.seen["attention_mask"] is mask


@pytest.mark.parametrize("mask", [LEFT, LEFT.bool(), torch.cat([RIGHT, LEFT])])
def test_left_padding_is_refused_by_name_if_the_model_takes_no_mask(mask):
    why = r"Spy.forward takes no attention_mask \[\d, 2\].*tokens behind padding.*side='right'"
    with pytest.raises(ValueError, match=why):
        forward_logits(spy("input_ids"), {"input_ids": IDS, "attention_mask": mask})


@pytest.mark.parametrize("mask", [NONE, RIGHT, LEFT])
def test_a_mask_off_the_cpu_is_neither_looked_at_nor_dropped(mask):
    """On the meta device looking would raise another error."""
    with pytest.raises(ValueError, match=r"Spy.forward takes no attention_mask .* is on meta, .* leave attention_mask"):
        forward_logits(spy("input_ids"), {"input_ids": IDS, "attention_mask": mask.to("meta")})


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ("input_ids, positions=None", "positions"),
        ("input_ids, position_ids=None", "position_ids"),
        ("input_ids, position_ids=None, **kwargs", "position_ids"),
        ("input_ids, position_ids=None, positions=None", "positions"),
    ],
)
def test_positions_arrive_under_the_models_own_name(parameters, name):
    model = spy(parameters)
    forward_logits(model, {"input_ids": IDS, "positions": IDS})
    assert {n for n, value in model.seen.items() if value is IDS} == {"input_ids", name}


@pytest.mark.parametrize("name", ["doc_ids", "positions"])
@pytest.mark.parametrize("parameters", ["input_ids", "input_ids, attention_mask=None", "input_ids, **kwargs"])
def test_what_keeps_packed_documents_apart_is_refused_by_a_model_that_does_not_name_it(parameters, name):
    model = spy(parameters)
    with pytest.raises(ValueError, match=rf"Spy.forward takes no {name} \[1, 2\].* Name {name}"):
        forward_logits(model, {"input_ids": IDS, name: IDS})
    assert not hasattr(model, "seen")


def test_anything_else_that_the_model_does_not_take_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Spy.forward takes no token_type_ids \[1, 2\].*leave it out of the batch"):
        forward_logits(spy("input_ids"), {"input_ids": IDS, "token_type_ids": IDS})


def test_our_own_model_takes_packed_and_padded_batches_whole():
    model, documents = GPT(PRESETS["nano"]).eval(), [[1, 2, 3, 4], [5, 6, 7]]
    for batch in (pack(documents, 8).batch([0]), collate(documents, pad_id=0, side="left")):
        by_hand = model(batch["input_ids"], **{n: batch[n] for n in batch if n not in ("input_ids", "labels")})
        assert torch.equal(forward_logits(model, batch), by_hand)


class Compiled(nn.Module):
    """As torch.compile wraps a model, without its compiler."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model

    def forward(self, *args, **kwargs):
        return self._orig_mod(*args, **kwargs)


@pytest.mark.parametrize("wrap", [nn.DataParallel, Compiled, lambda m: Compiled(nn.DataParallel(m))])
def test_wrappers_are_looked_through(wrap):
    """Their own forward takes anything, and an error must name the model."""
    model = spy("input_ids")
    with pytest.raises(ValueError, match=r"^Spy.forward takes no doc_ids"):
        forward_logits(wrap(model), {"input_ids": IDS, "doc_ids": IDS})
    with pytest.raises(ValueError, match=r"^Spy.forward takes no attention_mask"):
        forward_logits(wrap(model), {"input_ids": IDS, "attention_mask": LEFT})
    assert forward_logits(wrap(model), {"input_ids": IDS, "attention_mask": RIGHT}) is LOGITS


def test_a_forward_that_was_replaced_on_one_model_is_the_one_that_counts():
    model, other = spy("input_ids"), spy("input_ids, doc_ids=None")
    model.forward = MethodType(type(other).forward, model)
    forward_logits(model, {"input_ids": IDS, "doc_ids": IDS})
    assert model.seen["doc_ids"] is IDS


def test_a_decorated_forward_takes_what_the_decorated_one_takes():
    model = spy("input_ids, doc_ids=None")
    inner = type(model).forward
    type(model).forward = functools.wraps(inner)(lambda self, *args, **kwargs: inner(self, *args, **kwargs))
    forward_logits(model, {"input_ids": IDS, "doc_ids": IDS})
    assert model.seen["doc_ids"] is IDS
    with pytest.raises(ValueError, match="takes no token_type_ids"):
        forward_logits(model, {"input_ids": IDS, "token_type_ids": IDS})


def test_the_signature_is_read_once_and_no_model_is_kept_alive(monkeypatch):
    read = []
    monkeypatch.setattr(inspect, "signature", lambda f, real=inspect.signature: read.append(f) or real(f))
    model = spy("input_ids, attention_mask=None")
    for _ in range(3):
        forward_logits(model, {"input_ids": IDS, "attention_mask": NONE})
    assert len(read) == 1
    model.forward = lambda input_ids, attention_mask, keep=model: LOGITS
    forward_logits(model, {"input_ids": IDS, "attention_mask": NONE})
    gone = weakref.ref(model)
    read.clear()  # of the function that holds the model
    del model
    gc.collect()
    assert gone() is None


def test_a_batch_can_be_fitted_on_the_cpu_before_it_leaves():
    class Plain(nn.Module):
        def forward(self, input_ids, position_ids=None):
            return LOGITS

    mask = torch.tensor([[1, 1, 0]])
    batch = {"input_ids": mask, "labels": mask, "positions": mask, "attention_mask": mask}
    assert set(fitted(Plain(), batch)) == {"input_ids", "labels", "position_ids"}
    moved = {name: tensor.to("meta") for name, tensor in fitted(Plain(), batch).items()}
    assert forward_logits(Plain(), moved) is LOGITS  # off the CPU nothing has to be looked at any more


def test_an_index_error_of_a_model_is_told_with_its_ids_also_where_there_are_none():
    class Fails(nn.Module):
        def forward(self, input_ids):
            raise IndexError("index out of range")

    for ids, told in ((torch.tensor([[3, 9]]), "from 3 to 9, 2 in"), (torch.empty(0, 4).long(), "are none, 4")):
        with pytest.raises(IndexError, match="index out of range") as caught:
            forward_logits(Fails(), {"input_ids": ids})
        assert told in caught.value.__notes__[0]
