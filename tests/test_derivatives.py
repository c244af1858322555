import threading

import pytest
import torch

from tinytrain.derivatives import Call, Derivatives


@pytest.fixture
def graph():
    """x, of which the model's code makes h; module a makes 3 h and keeps 7 h for later; the model adds 5 h."""
    told = []
    derivatives = Derivatives(lambda call, to, gradient: told.append((call, to, gradient.tolist())))
    x = torch.ones(1, requires_grad=True)
    whole = Call("model", None, 0)
    derivatives.begin(whole)
    h = x * 2
    a = Call("a", whole, 0)
    derivatives.begin(a)
    derivatives.claim([h], whole)
    y, kept = h * 3, h * 7
    derivatives.end(a)
    derivatives.claim([y], a)
    z = y + h * 5
    derivatives.end(whole)
    derivatives.claim([z], whole)
    return derivatives, told, x, whole, a, z, kept


def test_each_hands_on_its_own_share_of_a_gradient(graph):
    _, told, x, whole, a, z, _ = graph
    z.backward()
    assert x.grad.item() == 16
    assert told == [(whole, a, [1.0]), (whole, whole, [5.0]), (a, whole, [3.0]), (whole, x, [16.0])]


def test_what_its_own_maker_has_read_before_it_passed_is_known(graph):
    derivatives, _, x, _, _, z, _ = graph
    y = z * 2
    later = Call("later", None, 1)
    derivatives.begin(later)
    u = y * 3
    v = u * 4
    derivatives.claim([v], later)
    derivatives.claim([u], later)
    assert derivatives.reader(u.grad_fn) is later and derivatives.reader(v.grad_fn) is None
    assert derivatives.reader(x.grad_fn) is None is derivatives.reader(y.grad_fn)


def test_who_made_a_derivative_is_known_of_what_was_kept_for_later_too(graph):
    derivatives, told, x, whole, a, z, kept = graph
    assert derivatives.owner(z.grad_fn) is whole and derivatives.owner(kept.grad_fn) is a
    assert derivatives.owner((z * 1).grad_fn) is None is derivatives.owner(None)
    derivatives.claim([kept], None)
    kept.backward()
    assert told == [(a, whole, [7.0]), (whole, x, [14.0])]


def test_a_call_is_inside_those_that_wait_for_it():
    whole = Call("model", None, 0)
    part = Call("a.b", Call("a", whole, 0), 0)
    assert part.inside(whole) and part.inside(part) and not whole.inside(part)


def test_nothing_is_told_after_it_was_cleared(graph):
    derivatives, told, _, _, _, z, _ = graph
    derivatives.clear()
    z.backward()
    assert told == []


def test_another_thread_numbers_its_derivatives_anew_and_is_taken_at_its_word(graph):
    derivatives, _, _, whole, _, _, _ = graph
    once_more = Call("a", whole, 0)
    made = []

    def recompute():
        derivatives.begin(once_more)
        made.append(torch.ones(1, requires_grad=True) * 2)
        derivatives.end(once_more)
        derivatives.claim(made, once_more)

    thread = threading.Thread(target=recompute)
    thread.start()
    thread.join()
    assert derivatives.owner(made[0].grad_fn) is once_more
