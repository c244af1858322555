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
