"""Group G: loading data, and files that are not what they should be.

The kind of fault: a token that is never trained on, a row that is one too short, a row that depends on who fetched it,
and input that fails late, far from its cause. Good data is complete and a pure function of its place; bad data is
refused before the first update, with the file, the place and the value.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tinytrain.corpus import decode_text, load_corpus
from tinytrain.data import RowBatches, TokenRows, row_order
from tinytrain.seeds import generator_for


def pairs_of(row):
    return [p for p in zip(row["input_ids"].tolist(), row["labels"].tolist(), strict=True) if p[1] != -100]


def test_G01_every_token_but_the_first_is_predicted_from_its_neighbour_exactly_once():
    """rasbt/LLMs-from-scratch#23: windows that start one token too far apart."""
    ids = torch.arange(11)
    naive = {int(ids[start + i + 1]) for start in range(0, 11 - 5, 5) for i in range(4)}
    assert naive == {1, 2, 3, 4, 6, 7, 8, 9}, "5 is never a target"

    rows = TokenRows(ids, 4, vocab_size=11)
    seen = [pair for i in range(len(rows)) for pair in pairs_of(rows[i])]
    assert set(range(1, 9)) <= {target for _, target in seen}
    assert seen == list(pairwise(range(11))), "also the two at the end, which fill no row"


def test_G02_every_row_drawn_is_whole_up_to_the_last_possible_start():
    """karpathy/nanoGPT#292: one start too many, and the last target is missing; or the text is too short for any."""
    ids, block = torch.arange(10), 4
    naive = range(len(ids) - block + 1)
    assert len(ids[naive[-1] + 1 : naive[-1] + 1 + block]) == 3

    data = RowBatches(rows=TokenRows(ids, block, vocab_size=10), batch_size=2)
    drawn = [row for n in range(667) for batch in data[n] for row in zip(*batch.values(), strict=True)]
    assert len(drawn) >= 1000 and all(len(inputs) == len(labels) == 4 for inputs, labels in drawn)
    starts = {int(inputs[0]) for inputs, _ in drawn}
    assert max(starts) == len(ids) - block - 1 == 5 and min(starts) == 0


@pytest.mark.parametrize("n", [4, 1, 0])
def test_G02_a_text_that_fills_no_row_is_refused_with_both_numbers(n):
    with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to'"):
        torch.randint(n - 4, (1,))
    with pytest.raises(ValueError, match=rf"poem.txt: {n} tokens are too few for one row of row_length=4"):
        TokenRows(torch.zeros(n, dtype=torch.long), 4, vocab_size=10, name="poem.txt")


class Augmented:
    """Rows with one token dropped at random: by numpy's global generator, or by the row's own place."""

    def __init__(self, rows, own):
        self.rows, self.own = rows, own

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.own:
            place = int(torch.randint(8, (1,), generator=generator_for("drop", seed=0, epoch=3, index=index)))
        else:
            place = np.random.randint(8)
        row = self.rows[index]["input_ids"].clone()
        row[place] = 0
        return row


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
def test_G04_a_row_is_the_same_whoever_fetches_it():
    """pytorch/pytorch#5059: worker processes that share, or each have, a random state of their own.

    Nothing in the package needs workers. Its rows can be fetched by some all the same, and what an augmentation
    draws is the same with any number of them if it comes from (seed, epoch, index).
    """
    rows = TokenRows(torch.arange(1, 162), 8, vocab_size=162)

    def fetched(dataset, workers):
        np.random.seed(0)
        torch.manual_seed(0)
        return list(DataLoader(dataset, batch_size=None, num_workers=workers))

    def alike(dataset):
        return all(torch.equal(a, b) for a, b in zip(fetched(dataset, 0), fetched(dataset, 2), strict=True))

    assert not alike(Augmented(rows, own=False))
    assert alike(Augmented(rows, own=True))
    assert alike([rows[i]["labels"] for i in range(len(rows))])


def test_G04_rows_and_their_order_read_no_global_generator():
    rows = TokenRows(torch.arange(200), 8, vocab_size=200)
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        data = RowBatches(rows=rows, batch_size=4, seed=7)
        seen.append(torch.cat([batch["labels"] for n in range(9) for batch in data[n]]))
        assert torch.equal(torch.get_rng_state(), before), "nor move it"
    assert torch.equal(*seen)
    assert not torch.equal(row_order(25, seed=7, epoch=0), row_order(25, seed=7, epoch=1))


@pytest.mark.parametrize("bad", [5, -1])
def test_G06_an_id_outside_the_vocabulary_is_named_before_training(bad):
    """huggingface/transformers#12763: on a CPU an error without a name, on a GPU a device-side assertion."""
    with pytest.raises(IndexError, match="index out of range in self"):
        torch.nn.Embedding(5, 4)(torch.tensor([0, bad]))
    words = rf"poem.txt: token id {bad} at position 3 is outside the vocabulary 0\.\.4\. Does the tokenizer belong"
    with pytest.raises(ValueError, match=words):
        TokenRows(torch.tensor([0, 1, 4, bad, 2, bad]), 2, vocab_size=5, name="poem.txt")


WITH_BOM, LATIN_1 = bytes.fromhex("EF BB BF 61 62 0D 0A 63 64"), bytes.fromhex("63 61 66 E9")


def test_G07_a_byte_order_mark_and_windows_newlines_are_not_text(tmp_path):
    """karpathy/nanoGPT#429, openai/gpt-2#28: opened with whatever encoding the platform has."""
    assert len(set(WITH_BOM.decode("utf-8").replace("\r\n", "\n"))) == 6, "the mark is a sixth character"
    assert decode_text(WITH_BOM, "notes.txt") == "ab\ncd"

    path = tmp_path / "notes.txt"
    path.write_bytes(WITH_BOM)
    text = load_corpus(path).text
    assert text == "ab\ncd" and len(set(text)) == 5


def test_G07_a_file_in_another_encoding_is_refused_with_its_name_and_the_place(tmp_path):
    assert LATIN_1.decode("cp1252") == "café", "guessed right here, and wrong for the next file"
    path = tmp_path / "cafe.txt"
    path.write_bytes(LATIN_1)
    with pytest.raises(ValueError, match=r"cafe\.txt: byte 0xe9 at offset 3 is not UTF-8.*Save the file as UTF-8"):
        load_corpus(path)
