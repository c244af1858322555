import pytest
import torch

from tinytrain.tokenizer import ByteTokenizer


@pytest.mark.parametrize("text", ["", "To be", "Zoë — 三国演义 🙂", "a\nb\tc\0d"])
def test_any_text_comes_back_as_it_was(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == torch.int64
    assert len(ids) == len(text.encode("utf-8"))
    assert tokenizer.decode(ids) == text


def test_a_character_cut_in_half_shows_as_the_replacement_mark():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("aé")[:2]) == "a\ufffd"


def test_what_is_not_text_or_not_a_byte_is_named():
    with pytest.raises(ValueError, match="character 1 of the text"):
        ByteTokenizer().encode("a\ud800")
    with pytest.raises(ValueError, match="id 256 at position 1 is not a byte"):
        ByteTokenizer().decode([1, 256])


def test_a_text_in_pieces_has_the_ids_of_the_whole():
    tokenizer = ByteTokenizer()
    pieces = [torch.from_numpy(ids.copy()) for ids in tokenizer.encode_stream(["三国", "", "演义"])]
    assert torch.cat(pieces).tolist() == tokenizer.encode("三国演义").tolist()


def test_every_byte_counts_as_one_and_the_end_of_a_text_as_none():
    tokenizer = ByteTokenizer()
    assert tokenizer.end_of_text == 0
    assert tokenizer.token_bytes().tolist() == [0] + [1] * 255
