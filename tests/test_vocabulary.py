import pytest
import torch

from tinytrain.vocabulary import check_ids, rounded_up


@pytest.mark.parametrize("ids", [[], [0, 4], [[1, 2], [3, 4]]])
def test_ids_of_the_vocabulary_pass(ids):
    check_ids(torch.tensor(ids, dtype=torch.long), 5)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 5, 7], r"poem: token id 5 at position 1 is outside the vocabulary 0\.\.4"),
        ([[0, 1], [-1, 9]], r"poem: token id -1 at position \[1, 0\] is outside"),
    ],
)
def test_the_first_id_outside_is_named_with_its_place(ids, words):
    with pytest.raises(ValueError, match=words):
        check_ids(torch.tensor(ids), 5, "poem")


def test_a_vocabulary_is_rounded_up_to_a_multiple_of_1_or_more():
    with pytest.raises(ValueError, match="pad_vocab_to=0 must be at least 1"):
        rounded_up(256, 0)
