from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tinytrain.generate import generate, sample
from tinytrain.model import GPT, PRESETS
from tinytrain.tokenizer import ByteTokenizer


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def test_the_prompt_is_kept_and_the_asked_number_of_tokens_is_added(model):
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    longer = generate(model, ids, 7)
    assert longer.shape == (2, 10)
    assert torch.equal(longer[:, :3], ids)


def test_the_same_seed_gives_the_same_text_and_another_seed_another(model):
    tokenizer = ByteTokenizer()
    assert sample(model, tokenizer, "ROMEO", 20, seed=1) == sample(model, tokenizer, "ROMEO", 20, seed=1)
    assert sample(model, tokenizer, "ROMEO", 20, seed=1) != sample(model, tokenizer, "ROMEO", 20, seed=2)


def test_temperature_zero_takes_the_likeliest_token(model):
    ids = torch.tensor([[1, 2, 3]])
    for seed in (0, 1):
        assert generate(model, ids, 1, temperature=0, seed=seed)[0, -1] == model(ids)[0, -1].argmax()


def test_it_goes_on_past_the_models_positions(model):
    assert generate(model, torch.zeros(1, 60, dtype=torch.long), 10).shape == (1, 70)


def test_bad_prompts_and_temperatures_are_refused(model):
    with pytest.raises(ValueError, match=r"shape \[1, 0\]"):
        generate(model, torch.zeros(1, 0, dtype=torch.long), 1)
    with pytest.raises(TypeError, match=r"ids is a list; a prompt is a tensor \[B,T\]"):
        generate(model, [[1, 2]], 1)
    with pytest.raises(ValueError, match="temperature=-1"):
        generate(model, torch.zeros(1, 1, dtype=torch.long), 1, temperature=-1)
    with pytest.raises(ValueError, match="prompt is empty"):
        sample(model, ByteTokenizer(), "")


class Spy(nn.Module):
    """Says that the next token is the number of tokens it was shown, and remembers what that was."""

    def __init__(self, **config):
        super().__init__()
        self.config, self.seen = SimpleNamespace(**config), []

    def forward(self, input_ids):
        self.seen.append(input_ids.tolist())
        return SimpleNamespace(logits=nn.functional.one_hot(input_ids * 0 + input_ids.shape[1], 9).float())


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        ({"max_positions": 3}, [2, 3, 3, 3]),
        ({"max_position_embeddings": 3}, [2, 3, 3, 3]),
        ({"n_positions": 4}, [2, 3, 4, 4]),
        ({"context_length": 3}, [2, 3, 3, 3]),
        ({"block_size": 3}, [2, 3, 3, 3]),
        ({"block_size": 2, "max_position_embeddings": 3}, [2, 3, 3, 3]),
        ({}, [2, 3, 4, 5]),
    ],
)
def test_the_model_sees_the_last_tokens_that_fit_it(config, lengths):
    spy = Spy(**config)
    out = generate(spy, torch.tensor([[7, 8]]), 4, temperature=0)[0].tolist()
    assert [len(rows[0]) for rows in spy.seen] == lengths
    assert spy.seen[-1][0] == out[:-1][-lengths[-1] :]


def test_a_high_temperature_spreads_the_draws_and_a_low_one_gathers_them(model):
    ids = torch.zeros(200, 1, dtype=torch.long)
    kinds = {t: len(generate(model, ids, 1, temperature=t)[:, 1].unique()) for t in (1e-300, 1e-40, 0.01, 10.0)}
    assert kinds[1e-40] == 1 and kinds[0.01] < kinds[10.0] / 2


def test_what_cannot_be_generated_is_refused(model):
    ids = torch.zeros(1, 1, dtype=torch.long)
    for call in ({"temperature": float("nan")}, {"max_positions": 0}):
        with pytest.raises(ValueError, match="must be"):
            generate(model, ids, 1, **call)
    with pytest.raises(ValueError, match="max_new_tokens=-1"):
        generate(model, ids, -1)
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="logits are not finite: its weights have diverged"):
        generate(model, ids, 1)


def test_ids_that_the_tokenizer_lacks_are_never_drawn(model):
    """256 ids in the model, 250 in the tokenizer; so hot that each is as likely as any other."""
    ids, hot = torch.zeros(2000, 1, dtype=torch.long), {"temperature": 1e6}
    assert generate(model, ids, 1, **hot)[:, 1].max() >= 250
    assert generate(model, ids, 1, **hot, vocab_size=250)[:, 1].max() == 249

    class Fewer(ByteTokenizer):
        vocab_size = 250

        def decode(self, ids):
            return max(ids.tolist())

    assert sample(model, Fewer(), "a", 600, **hot) <= 249


class Other:
    """A tokenizer of somebody else's."""

    vocab_size = 256

    def __init__(self, gives):
        self.gives = gives

    def encode(self, text):
        return self.gives

    def decode(self, ids):
        return f"{len(ids)} ids"


def test_a_tokenizer_of_others_may_give_a_list(model):
    assert sample(model, Other([1, 2, 3]), "abc", 4) == "7 ids"


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (Other(SimpleNamespace(ids=[1, 2])), "tokenizer is a Other, which gives a SimpleNamespace for a text"),
        (Other({"input_ids": [1]}), "gives a dict for a text"),
        (Other(torch.zeros(1, 3).long()), "gives a Tensor for a text: .* as a list or a tensor \\[T\\], decode"),
        (str.split, "which has no encode and no decode and no vocab_size: sample needs"),
    ],
)
def test_one_that_gives_something_else_is_refused_with_what_is_needed(model, tokenizer, words):
    with pytest.raises(TypeError, match=words):
        sample(model, tokenizer, "abc", 4)
