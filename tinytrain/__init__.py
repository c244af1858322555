"""tinytrain: the training code that the notebooks teach, and that trains models outside them.

Importing the package defines names and does nothing else: no seed is set, no device is looked at,
no logger is configured. Each name lives in the module that is named for its idea:

    model  corpus  tokenizer  data  loss  optimizer  schedule  train  runlog  generate  observe  device  watch
"""

from tinytrain.corpus import Corpus, load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.device import best_device
from tinytrain.generate import generate, sample
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw, param_groups
from tinytrain.runlog import RunLog, read_run
from tinytrain.schedule import lr_sweep, warmup_cosine, warmup_stable_decay
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import Evaluation, StepReport, TrainConfig, Trainer, evaluate, train_step

__version__ = "0.1.0"

__all__ = [
    "GPT",
    "PRESETS",
    "ByteTokenizer",
    "Corpus",
    "Evaluation",
    "ModelConfig",
    "RowBatches",
    "RunLog",
    "StepReport",
    "TokenRows",
    "TrainConfig",
    "Trainer",
    "best_device",
    "build_adamw",
    "count_targets",
    "cross_entropy",
    "evaluate",
    "generate",
    "load_corpus",
    "lr_sweep",
    "param_groups",
    "read_run",
    "sample",
    "train_step",
    "warmup_cosine",
    "warmup_stable_decay",
]
