"""``python -m tinytrain sample runs/first``: text from the newest checkpoint of a run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from tinytrain.bpe import END_OF_TEXT
from tinytrain.checkpoint import Checkpointer
from tinytrain.commands.option_types import MaybeText
from tinytrain.commands.run_model import model_config
from tinytrain.commands.run_options import load_options, load_run_tokenizer
from tinytrain.device import best_device
from tinytrain.generate import sample
from tinytrain.model import GPT
from tinytrain.train import CHECKPOINTS
from tinytrain.weights import load_model_state, with_ties


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Write text with the newest whole checkpoint of a run, and the tokenizer that lies beside it."""

    folder: tyro.conf.Positional[Path]
    """folder of the run"""
    prompt: MaybeText = None
    """what the text begins with; the run's own prompt if not given"""
    new_tokens: int = 200
    """tokens that are added to the prompt"""
    temperature: float = 0.8
    """below 1 the likely tokens get likelier; 0 always takes the likeliest"""
    seed: int = 0
    """of the draws"""


def sample_run(options: Sample) -> str:
    """The prompt and its continuation. Raises ``ValueError`` for a folder without a run or a whole checkpoint."""
    run, tokenizer = load_options(options.folder), load_run_tokenizer(options.folder)
    model = GPT(model_config(run, tokenizer.vocab_size)).to(best_device())
    checkpoint, state = Checkpointer(options.folder / CHECKPOINTS).load()
    weights = with_ties(model.state_dict(), state["model"])  # shards hold a tied weight once
    load_model_state(model, weights, source=str(checkpoint.folder))
    return shown(
        sample(
            model,
            tokenizer,
            run.prompt if options.prompt is None else options.prompt,
            options.new_tokens,
            temperature=options.temperature,
            seed=options.seed,
        )
    )


def shown(text: str) -> str:
    """A text for people: the byte that ends a document is written as a word."""
    return text.replace("\0", END_OF_TEXT)
