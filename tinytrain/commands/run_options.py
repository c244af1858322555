"""What a run was started with, and the tokenizer it reads its text with: kept in its folder, to be found again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from tinytrain.commands.option_types import MaybeBool, MaybeInt, MaybeText
from tinytrain.corpus import NAMES
from tinytrain.durable import replace_file
from tinytrain.token_file import require_tokenizer
from tinytrain.tokenizer import ByteTokenizer, Tokenizer
from tinytrain.tokenizer_file import FILE, load_tokenizer

OPTIONS = "run.json"
"""file in a run's folder that holds the options it was started with"""
FINGERPRINT = "tokenizer_fingerprint"
"""what the tokenizer is known by, beside the options"""
ADDED = {"tokenizer", "vocab_size", "tokens", "pad_vocab_to", "compile", "loss_chunk", "recompute", "prefetch"}
"""options that earlier runs had not: their defaults are what those runs did"""


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model on text, and write its log and checkpoints."""

    out: Path
    """folder for the log and the checkpoints; it must not hold a run yet"""
    preset: str = "nano"
    """the model: nano, tiny, 27m, 120m, 350m or 7b"""
    corpus: str = "shakespeare"
    """shakespeare, three_kingdoms, python, or the path of a text file or folder"""
    pattern: str = "*"
    """which files of a corpus folder are read, such as *.txt"""
    tokenizer: str = "bytes"
    """bytes; bpe, which is learned from the training text; or the path of a tokenizer.json"""
    vocab_size: MaybeInt = None
    """tokens of the vocabulary that bpe learns; 4096 if not given"""
    tokens: MaybeText = None
    """folder that the tokens command wrote, in place of a corpus and a tokenizer; read where it lies"""
    steps: int = 1000
    """updates"""
    batch_size: int = 16
    """rows in one update"""
    micro_batch_size: MaybeInt = None
    """rows in one forward and backward pass; the whole batch if not given"""
    row_length: MaybeInt = None
    """tokens in a row; the model's positions if not given"""
    max_lr: float = 6e-3
    """learning rate after the warmup"""
    warmup_steps: MaybeInt = None
    """updates until max_lr is reached; a twentieth of the steps if not given"""
    dropout: float = 0.0
    """share of activations dropped in training"""
    weight_decay: float = 0.1
    """share of each matrix removed per unit of lr"""
    eval_every: int = 200
    """updates between evaluations on held-out text"""
    eval_rows: int = 512
    """held-out rows in an evaluation, spread evenly over the held-out text"""
    precision: str = "fp32"
    """width of the forward pass: fp32, bf16 or fp16"""
    compile: bool = False
    """fuse the model's operations into fewer and larger ones (torch.compile): faster on a GPU; needs a compiler"""
    pad_vocab_to: int = 1
    """round the model's vocabulary up to a multiple of it: 64 makes a GPU faster; ids so added are never written"""
    loss_chunk: MaybeInt = None
    """tokens whose logits are held at one time, such as 4096, to save memory; all of a micro-batch if not given"""
    recompute: bool = False
    """keep less of the forward pass and compute it again (activation checkpointing): less memory, a third slower"""
    prefetch: MaybeBool = None
    """make the next batch while this one is trained on; if not given, only where there is a CUDA device"""
    checkpoint_every: int = 200
    """updates between two checkpoints that the run can be resumed from; one more is written at its end"""
    shard: bool = False
    """with several processes: share out the weights instead of copying them"""
    seed: int = 0
    """of the initial weights, of dropout and of the order of the rows"""
    processes: int = 1
    """processes on this machine that share each update; torchrun starts its own"""
    prompt: Annotated[str, tyro.conf.arg(help_behavior_hint="(default: ROMEO and a new line)")] = "ROMEO\n"
    """what the sample at the end continues"""


def save_options(options: Train, tokenizer: Tokenizer | None = None) -> None:
    """Write the tokenizer (bytes if not given), then ``run.json``, into the run's folder, each whole or not at all."""
    tokenizer = tokenizer or ByteTokenizer()
    values = {name: value for name, value in asdict(options).items() if name != "out"}
    no_paths = {"corpus": NAMES, "tokens": (None,), "tokenizer": ("bytes", "bpe")}
    for name, known in no_paths.items():  # a path is found again from any other folder
        if values[name] not in known and Path(values[name]).exists():
            values[name] = str(Path(values[name]).resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(options.out / FILE)
    text = json.dumps(values | {FINGERPRINT: tokenizer.fingerprint}, indent=1)
    replace_file(options.out / OPTIONS, text.encode())


def load_options(folder: Path) -> Train:
    """The options of the run in ``folder``. Raises ``ValueError`` if there are none, or if the file is damaged."""
    return _read(folder)[0]


def load_run_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that lies beside the run in ``folder``.

    Raises ``ValueError`` if it is not the one that the run began with, and ``FileNotFoundError`` if it is gone.
    """
    fingerprint = _read(folder)[1]
    if fingerprint is None:  # of before there were others
        return ByteTokenizer()
    tokenizer = load_tokenizer(folder / FILE)
    require_tokenizer(tokenizer.fingerprint, fingerprint, folder / FILE, "the ids of this run")
    return tokenizer


def _read(folder: Path) -> tuple[Train, str | None]:
    path = folder / OPTIONS
    if not path.is_file():
        raise ValueError(f"{folder} holds no run: there is no {OPTIONS}, which the train command writes")
    kinds = get_type_hints(Train) | {FINGERPRINT: str | None}
    del kinds["out"]
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        if wrong := sorted(set(kinds) - ADDED - {FINGERPRINT} - set(values) | set(values) - set(kinds)):
            raise ValueError(f"{', '.join(wrong)} missing or unknown")
        for name, value in values.items():
            if not isinstance(value, (int, float) if kinds[name] is float else kinds[name]):
                raise ValueError(f"{name} is {value!r}")
        fingerprint = values.pop(FINGERPRINT, None)
        return Train(**values, out=folder), fingerprint
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): mend it, or start the run again in another folder") from None
