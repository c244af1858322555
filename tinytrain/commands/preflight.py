"""``python -m tinytrain preflight my_model.py:build``: a fresh model, tested before its first update."""

from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from tinytrain.commands.option_types import shown_as
from tinytrain.corpus import load_corpus
from tinytrain.data import TokenRows
from tinytrain.device import best_device
from tinytrain.model import GPT, find_preset
from tinytrain.seeds import generator_for
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.watch import preflight as watch
from tinytrain.watch.preflight.target import load_target, row_length_of, vocabulary_of


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Test a fresh model, yours or a preset, before its first update; exit status 1 if a line fails."""

    target: Annotated[tyro.conf.Positional[str | None], shown_as("[MODEL]")] = None
    """module:factory or path/to/file.py:factory; it returns a model, (model, batch) or (model, batch, optimizer)"""
    preset: str = "nano"
    """the model if there is no target: nano, tiny, 27m, 120m, 350m or 7b"""
    corpus: str = "shakespeare"
    """text for the batch, if the factory returns none and the model has 256 tokens, one for each byte"""
    seed: int = 0
    """of a preset's weights, of a factory's, and of random ids"""


def preflight(options: Preflight) -> bool:
    """Print the report on the model that ``options`` name; True if no line failed."""
    torch.manual_seed(options.seed)
    model, batch, optimizer = (
        (GPT(find_preset(options.preset)).to(best_device()), None, None)
        if options.target is None
        else load_target(options.target)
    )
    own = {} if batch is not None else {"labels shifted once": "this batch was made here, and not by your data"}
    if batch is None:
        batch, source = _batch_for(model, options)
        print(source)
    report = watch.preflight(model, batch, optimizer=optimizer)
    lines = [watch.Line(x.name, None, f"not tested: {own[x.name]}") if x.name in own else x for x in report.lines]
    print(report := watch.Report(tuple(lines)))
    untested = sum(line.passed is None for line in report.lines)
    told = "No line failed" if report.passed else f"{len(report.failed)} failed; mend the first: {report.failed[0]}"
    print(f"{told}. {untested} of {len(report.lines)} could not be tested." if untested else f"{told}.")
    return report.passed


def _batch_for(model: torch.nn.Module, options: Preflight) -> tuple[dict[str, torch.Tensor], str]:
    V, T = vocabulary_of(model), row_length_of(model)
    if ByteTokenizer().vocab_size == V:
        corpus = load_corpus(options.corpus)
        rows = TokenRows(ByteTokenizer().encode(corpus.text), T, V, corpus.name)
        return rows.stack(list(range(16))), f"The batch: bytes of {corpus.name}"
    ids = torch.randint(0, V, (16, T + 1), generator=generator_for("preflight", seed=options.seed))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}, f"The batch: random ids from 0..{V - 1}, no text"
