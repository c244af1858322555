import json

import pytest

from tinytrain.bpe import BPETokenizer
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.tokenizer_file import choose_tokenizer, load_tokenizer


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPETokenizer.learn(["to be or not to be " * 9], 260)])
def test_a_saved_tokenizer_is_the_same_when_it_is_loaded(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer.json")
    tokenizer.save(str(tmp_path / "tokenizer.json"))  # text is a path, too
    again = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert type(again) is type(tokenizer) and again.fingerprint == tokenizer.fingerprint
    assert again.encode("not to be, 三国").tolist() == tokenizer.encode("not to be, 三国").tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"model": {"type": "bytes2"}}', b"\xff", b"null", b'"a"', b"[" * 100_000]
)
def test_what_is_no_tokenizer_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is (damaged or )?no tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_file_cut_anywhere_is_refused(tmp_path):
    whole = BPETokenizer.learn(["to be or not to be " * 9], 260).to_json()
    for end in range(0, len(whole.rstrip()) - 1, 97):
        (tmp_path / "tokenizer.json").write_text(whole[:end], encoding="utf-8")
        with pytest.raises(ValueError, match=r"tokenizer\.json is damaged"):
            load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_is_chosen_by_name_or_file(tmp_path):
    assert choose_tokenizer("bytes", []).fingerprint == "bytes"
    learned = choose_tokenizer("bpe", ["to be or not to be " * 9], 260)
    assert learned.vocab_size == 260
    learned.save(tmp_path / "mine.json")
    assert choose_tokenizer(str(tmp_path / "mine.json"), []).fingerprint == learned.fingerprint
    with pytest.raises(FileNotFoundError, match=r"bpee: there is no such tokenizer file .*knows bytes and bpe"):
        choose_tokenizer("bpee", [])
    for name in ("bytes", str(tmp_path / "mine.json")):
        with pytest.raises(ValueError, match="vocab_size=300 is for tokenizer 'bpe'"):
            choose_tokenizer(name, [], 300)


def test_another_id_for_one_token_is_another_fingerprint():
    tokenizer = BPETokenizer.learn(["to be or not to be " * 9], 260)
    state = json.loads(tokenizer.to_json())
    vocabulary = state["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    other = BPETokenizer.from_json(json.dumps(state), "other.json")
    assert other.encode("ab").tolist() == tokenizer.encode("ba").tolist()
    assert other.fingerprint != tokenizer.fingerprint
    assert BPETokenizer.from_json(tokenizer.to_json(), "same.json").fingerprint == tokenizer.fingerprint
