"""The texts and the orders of notebook 05 are what their names say."""

import pytest

from tinytrain.corpus import Corpus, Document
from tinytrain.course.lesson_05 import END, ORDERS, batches_in, draw, lines, passages, speeches, tokens_of

PLAY = Corpus("play", [Document("one", "Ay\nNo\n\nTo be\n\n \n\nor not to be"), Document("two", "That is")])
SIZES = [(37 * i) % 50 + 1 for i in range(200)]  # targets of 200 documents


def targets(batch):
    return sum(SIZES[i] for i in batch)


def test_a_text_is_cut_into_lines_speeches_and_passages():
    assert lines(PLAY) == ["Ay", "No", "To be", "or not to be", "That is"]
    assert speeches(PLAY) == ["Ay\nNo", "To be", "or not to be", "That is"]
    joined = passages(PLAY, at_least=8)
    assert [len(text) >= 8 for text in joined[:-1]] == [True] * (len(joined) - 1)
    assert "\n\n".join(joined).split() == "\n\n".join(speeches(PLAY)).split()


def test_texts_are_drawn_each_once_until_there_are_enough_tokens():
    texts = [chr(97 + i) * (i + 1) for i in range(20)]
    drawn = [document.tolist() for document in draw(texts, 60)]
    known = [tokens_of(text).tolist() for text in texts]
    assert all(known.count(document) == 1 and drawn.count(document) == 1 for document in drawn)
    assert sum(map(len, drawn)) >= 60 > sum(map(len, drawn[:-1]))
    assert drawn != [document.tolist() for document in draw(texts, 60, seed=1)]
    assert all(document[0] == document[-1] == END for document in drawn)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_has_each_document_once_and_depends_on_its_seed(order):
    batches = batches_in(order, SIZES, rows=8, seed=0)
    assert sorted(i for batch in batches for i in batch) == list(range(200))
    assert batches == batches_in(order, SIZES, rows=8, seed=0) != batches_in(order, SIZES, rows=8, seed=1)
    if order != "even":
        assert {len(batch) for batch in batches} == {8}


def test_sorted_orders_are_sorted_from_end_to_end():
    rising = [SIZES[i] for batch in batches_in("rising", SIZES, rows=8, seed=0) for i in batch]
    falling = [SIZES[i] for batch in batches_in("falling", SIZES, rows=8, seed=0) for i in batch]
    assert rising == sorted(SIZES) and falling == sorted(SIZES, reverse=True)


def test_even_batches_have_about_equal_targets_and_windowed_ones_do_not():
    even, windowed = (sorted(map(targets, batches_in(o, SIZES, rows=8, seed=0))) for o in ("even", "windowed"))
    middle = 8 * sum(SIZES) / len(SIZES)
    assert middle - 50 <= even[0] and even[-1] <= middle + 50  # one document more or less
    assert windowed[0] < middle / 2 and windowed[-1] > 1.5 * middle


def test_neighbours_in_length_meet_inside_a_window():
    def widest(order):
        batches = batches_in(order, SIZES, rows=8, seed=0)
        return sum(max(SIZES[i] for i in b) - min(SIZES[i] for i in b) for b in batches) / len(batches)

    assert max(widest("windowed"), widest("even")) < widest("random") / 2


def test_an_unknown_order_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"order='up' must be one of"):
        batches_in("up", SIZES, rows=8, seed=0)
