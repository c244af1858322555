import pytest
import torch

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
    with pytest.raises(ValueError, match="temperature=-1"):
        generate(model, torch.zeros(1, 1, dtype=torch.long), 1, temperature=-1)
    with pytest.raises(ValueError, match="prompt is empty"):
        sample(model, ByteTokenizer(), "")
