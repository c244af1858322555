from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

from tinytrain.batches import collate, pack
from tinytrain.watch.padding import PADDING, document_ids, plot_batch


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def bars(ax):
    """(row, first position, length, ink) of each bar."""
    found = [(p.get_y() + p.get_height() / 2, p.get_x(), p.get_width(), to_hex(p.get_facecolor())) for p in ax.patches]
    return [(round(row), start, length, ink) for row, start, length, ink in found]


def places_of(ax, ink):
    return {(row, int(start) + i) for row, start, length, c in bars(ax) if c == ink for i in range(int(length))}


@pytest.mark.parametrize("side", ["right", "left"])
def test_exactly_the_padding_is_grey(ax, side):
    batch = collate([[1, 2], [1, 2, 3, 4], [1, 2, 3]], pad_id=0, side=side)
    plot_batch(ax, batch, title="t")
    padding = {tuple(place) for place in (~batch["attention_mask"]).nonzero().tolist()}
    assert places_of(ax, PADDING) == padding != set()
    assert sum(length for _, _, length, _ in bars(ax)) == batch["input_ids"].numel()


def test_neighbouring_documents_have_different_inks_and_one_bar_each(ax):
    packed = pack([[1, 2, 3], [4, 5, 6], [7, 8], [1] * 6], 6)
    plot_batch(ax, packed.batch(range(len(packed))), title="t")
    assert [(row, start, length) for row, start, length, _ in bars(ax)] == [
        (0, 0, 5), (0, 5, 1), (1, 0, 2), (1, 2, 2), (1, 4, 2),
    ]  # fmt: skip
    for row in (0, 1):
        inks = [ink for at, _, _, ink in bars(ax) if at == row]
        assert all(a != b for a, b in pairwise(inks))
    assert bars(ax)[-1][3] == PADDING


def test_padding_inside_a_packed_row_may_come_from_either_mark():
    doc_ids, mask = torch.tensor([[0, 0, 1, -1]]), torch.tensor([[1, 1, 0, 1]])
    assert document_ids({"doc_ids": doc_ids, "attention_mask": mask}).tolist() == [[0, 0, -1, -1]]
    assert doc_ids.tolist() == [[0, 0, 1, -1]]
    assert document_ids({"input_ids": torch.tensor([[7, 8]])}).tolist() == [[0, 0]]
    assert document_ids({"doc_ids": doc_ids}).tolist() == doc_ids.tolist()
    with pytest.raises(ValueError, match="only \\['labels'\\]"):
        document_ids({"labels": doc_ids})


def test_the_first_row_is_on_top_and_axes_are_named(ax):
    plot_batch(ax, collate([[1, 2, 3], [1, 2]], pad_id=0), title="one third is air")
    low, high = ax.get_ylim()
    assert low > high
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == (
        "one third is air",
        "position in the row",
        "row",
    )
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["padding"]


def test_without_padding_there_is_no_key_to_it(ax):
    plot_batch(ax, collate([[1, 2, 3]], pad_id=0), title="t")
    assert ax.get_legend() is None


def test_letters_stand_in_the_middle_of_their_position(ax):
    plot_batch(ax, collate([[1, 2, 3], [1, 2]], pad_id=0), title="t", letters=["ab", "c "])
    written = {text.get_text(): text.get_position() for text in ax.texts if text.get_text().strip()}
    assert written == {"a": (0.5, 0), "b": (1.5, 0), "c": (0.5, 1)}


def test_letters_of_another_shape_are_refused(ax):
    with pytest.raises(ValueError, match="the batch has 2 rows of 2 positions"):
        plot_batch(ax, collate([[1, 2, 3], [1, 2]], pad_id=0), title="t", letters=["ab", "c"])
