import dataclasses
import math
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch

from tinytrain.tensors import is_bad, readable, tensors_in


@dataclasses.dataclass(slots=True)
class Slotted:
    logits: object


@dataclasses.dataclass
class Listed:
    parts: list


class Attributes:
    def __init__(self, x):
        self.x, self.note, self.others = x, "text", [x]


class Slots:
    __slots__ = "x"

    def __init__(self, x):
        self.x = x


FORMS = {
    "a slotted dataclass": Slotted,
    "a dataclass with a list": lambda x: Listed([x]),
    "namespaces": lambda x: SimpleNamespace(a=SimpleNamespace(b=x)),
    "a mapping": lambda x: UserDict(a=x),
    "a set": lambda x: {x},
    "an object": Attributes,
    "an object with slots": Slots,
}


@pytest.mark.parametrize("form", FORMS)
def test_tensors_are_found_in_every_container(form):
    x = torch.ones(1)
    found = list(tensors_in((1, {"key": FORMS[form](x)}, None)))
    assert len(found) == 1 and found[0] is x


def test_a_container_that_contains_itself_is_looked_through_once():
    parts = [torch.ones(1)]
    parts.append(parts)
    assert len(list(tensors_in(parts))) == 1


def test_a_module_and_what_an_iterator_would_yield_are_left_alone():
    iterator = iter([torch.ones(1)])
    assert list(tensors_in([iterator, torch.nn.Linear(1, 1)])) == [] and len(list(iterator)) == 1


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_numbers_that_can_be_read_are_read_whatever_form_they_have(value):
    real = torch.tensor([1.0, value])
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), real, check_invariants=False)
    for tensor in (real, torch.complex(real, real), torch.complex(real, real).conj(), sparse):
        assert bool(is_bad(readable(tensor), "forward")) == math.isnan(value)
    assert bool(is_bad(readable(real.to(torch.float8_e4m3fn)), "forward")) == math.isnan(value)
    assert torch.equal(readable(torch.tensor([3 + 4j])), torch.tensor([[3.0, 4.0]]))
    tracked = real.requires_grad_()
    assert not readable(tracked).requires_grad


def test_what_cannot_be_read_says_why():
    told = []
    torch.vmap(lambda x: told.append(readable(x)) or x)(torch.ones(2))
    assert told == ["inside torch.func"]
    assert readable(torch.ones(1, device="meta")) == "without data (meta)"
    assert readable(torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)) == "nested"


def test_minus_infinity_is_a_fault_beside_huge_numbers_and_where_nothing_else_is_left():
    assert not is_bad(torch.tensor([1.0, -math.inf]), "forward")
    assert is_bad(torch.tensor([1.0, -math.inf]), "backward")
    assert is_bad(torch.tensor([1e37, -math.inf]), "forward") and is_bad(torch.full((2,), -math.inf), "forward")
    assert is_bad(torch.tensor([1.0, math.inf]), "forward") and is_bad(torch.tensor([math.nan, -math.inf]), "forward")
    assert is_bad(torch.tensor([700.0, -math.inf]).half(), "forward") and not is_bad(torch.empty(0), "forward")
    assert is_bad(torch.tensor([1.0, math.inf], device="meta"), "forward").device.type == "meta", "no device waits"


def test_numbers_whose_sum_overflows_are_finite():
    assert not is_bad(torch.full((2,), 3e38), "backward") and not is_bad(torch.full((2,), 6e4).half(), "forward")


def test_only_nan_is_wrong_in_a_buffer():
    assert not is_bad(torch.tensor([math.inf, -math.inf]), "forward", buffer=True)
    assert is_bad(torch.tensor([math.inf, math.nan]), "forward", buffer=True)
    assert not is_bad(torch.ones(2), "forward", buffer=True)
