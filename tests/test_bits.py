import math

import pytest
import torch

from tinytrain.bits import bits_per_byte, bytes_per_target
from tinytrain.bpe import BPETokenizer
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer, evaluate


def test_by_hand():
    assert bits_per_byte(math.log(256), 1.0) == pytest.approx(8.0)  # nothing known about the next byte
    assert bits_per_byte(math.log(4096), 4.0) == pytest.approx(3.0)


def test_bytes_per_target_leaves_out_what_is_no_target_and_counts_the_end_of_a_text():
    sizes = torch.tensor([0, 1, 2, 5])
    batches = [{"labels": torch.tensor([[3, -100], [2, 0]])}, {"labels": torch.tensor([[1, 2]])}]
    assert bytes_per_target(batches, sizes) == (5 + 2 + 0 + 1 + 2) / 5
    with pytest.raises(ValueError, match="the 1 targets stand for no byte"):
        bytes_per_target([{"labels": torch.tensor([[0, -100]])}], sizes)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_model_that_knows_only_how_common_tokens_are_has_the_bits_of_their_entropy(kind):
    """The sum of -log2 p over all targets, over the bytes of the text that they are, counted from the text itself."""
    text = "to be or not to be, that is the question — " * 40
    tokenizer = ByteTokenizer() if kind == "bytes" else BPETokenizer.learn([text], 300)
    ids = tokenizer.encode(text)
    counts = torch.bincount(ids[1:], minlength=tokenizer.vocab_size) + 0.01
    log_p = (counts / counts.sum()).log()

    class Unigram(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.Parameter(log_p)

        def forward(self, input_ids):
            return self.logits.expand(*input_ids.shape, -1)

    batches = list(TokenRows(ids, 16, tokenizer.vocab_size).batches(4))
    evaluation = evaluate(Unigram(), batches)
    found = bits_per_byte(evaluation.loss, bytes_per_target(batches, tokenizer.token_bytes()))
    n_bytes = len(text.encode()) - len(tokenizer.decode(ids[:1]).encode())
    assert found == pytest.approx(-log_p[ids[1:]].double().sum().item() / math.log(2) / n_bytes, rel=1e-6)


def test_the_log_has_both_units_and_only_where_bytes_per_token_is_given():
    rows = TokenRows(torch.arange(200) % 256, 16, vocab_size=256)
    for bytes_per_token, names in ((None, {"eval_loss"}), (2.5, {"eval_loss", "eval_bits_per_byte"})):
        trainer = Trainer(
            GPT(PRESETS["nano"]),
            RowBatches(rows=rows, batch_size=4),
            TrainConfig(total_steps=1, max_lr=1e-3),
            validation=list(rows.batches(8)),
            bytes_per_token=bytes_per_token,
        )
        record = trainer.fit().record
        assert {name for name in record if name.startswith("eval_")} == names
    assert record["eval_bits_per_byte"] == record["eval_loss"] / math.log(2) / 2.5
