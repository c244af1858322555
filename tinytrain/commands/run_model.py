"""The model of a run, as its options say: its sizes, and how it computes on the way through training."""

from dataclasses import replace

from torch import nn

from tinytrain.commands.run_options import Train
from tinytrain.compiled import compile_blocks
from tinytrain.device import best_device
from tinytrain.distributed import shard
from tinytrain.model import GPT, ModelConfig, find_preset
from tinytrain.recompute import recompute_activations
from tinytrain.vocabulary import rounded_up


def model_config(options: Train, vocab_size: int) -> ModelConfig:
    """The sizes of the run's model, for a tokenizer with ``vocab_size`` tokens.

    The model's own vocabulary is that number rounded up to a multiple of ``options.pad_vocab_to``. No text holds the
    ids behind the tokenizer's, so they are never a target: the model learns never to expect them, and ``sample`` never
    draws them. A loss is the model's own, with what it wastes on them: ln V of a fresh model counts them.
    """
    wide = rounded_up(vocab_size, options.pad_vocab_to)
    return replace(find_preset(options.preset), vocab_size=wide, dropout=options.dropout)


def build_model(options: Train, vocab_size: int) -> tuple[nn.Module, int]:
    """(the run's model with fresh weights, ready to be trained on the best device here; how many parameters it has).

    Raises ``CompilerMissingError`` if it is to be compiled and cannot.
    """
    model = GPT(model_config(options, vocab_size)).to(best_device())
    parameters = model.num_parameters()
    model.loss_chunk = options.loss_chunk
    if options.compile:
        compile_blocks(model)
    if options.recompute:
        recompute_activations(model)  # around what is compiled
    return (shard(model) if options.shard else model), parameters
