"""The training runs of notebook 01, importable, for they run in processes of their own."""

import statistics
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from tinytrain.batches import collate
from tinytrain.corpus import Corpus, load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.generate import generate
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, ModelConfig
from tinytrain.observe import observing
from tinytrain.optimizer import build_adamw
from tinytrain.schedule import warmup_cosine
from tinytrain.step import evaluate, train_step
from tinytrain.tokenizer import ByteTokenizer

V = 256
MAX_LR = 5e-3
TEMPERATURES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0)
LATE = 200  # updates at the end over which the wobble is measured
END = 0  # a byte that no text uses: the end of a line


def small_model(seed: int, max_positions: int) -> GPT:
    """Two layers, 32 wide. With weights of this size at the start, runs of different seeds end close together."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return GPT(ModelConfig(**sizes, max_positions=max_positions, init_std=0.1))


def lr_at(step: int, steps: int) -> float:
    """50 updates of warmup, then a cosine down to a tenth."""
    return warmup_cosine(step, max_lr=MAX_LR, min_lr=MAX_LR / 10, warmup_steps=50, total_steps=steps)


def rows_of_text(row_length: int, n_bytes: int | None = None) -> tuple[TokenRows, TokenRows]:
    """Training rows, from the first ``n_bytes`` of the training plays or from all of them, and held-out rows."""
    train, held_out = load_corpus().split(validation_fraction=0.1)
    ids, held_out_ids = (ByteTokenizer().encode(part.text) for part in (train, held_out))
    return TokenRows(ids[:n_bytes], row_length, V), TokenRows(held_out_ids, row_length, V)


def train_smoothed(smoothing: float, seed: int, steps: int, n_bytes: int | None = None) -> dict:
    """Train with smoothed targets, on all training plays or on ``n_bytes`` of them; what the model then does on
    held-out text. Losses are in nats per byte, and without smoothing."""
    train_rows, held_out = rows_of_text(32, n_bytes)
    model, data = small_model(seed, 32), RowBatches(rows=train_rows, batch_size=8, seed=seed)
    optimizer = build_adamw(model, lr=MAX_LR)
    (fixed,) = held_out.batches(32, limit=32)
    train_losses, fixed_losses = [], []
    for step in range(steps):
        (batch,) = data[step]
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, steps)
        loss = cross_entropy(model(batch["input_ids"]), batch["labels"], label_smoothing=smoothing)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= steps - LATE:
            train_losses.append(loss.item())
            with observing(model):
                fixed_losses.append(cross_entropy(model(fixed["input_ids"]), fixed["labels"]).item())
    moves = [after - before for before, after in pairwise(fixed_losses)]
    late = {"train_loss": statistics.mean(train_losses), "wobble": statistics.stdev(moves)}
    return {**late, **on_held_out(model, held_out.batches(128, limit=1024), smoothing)}


def on_held_out(model: GPT, batches: Iterator[dict[str, Tensor]], smoothing: float) -> dict:
    """Held-out ``loss`` as it is, ``by_temperature``, and ``unmixed``: with the even part of the smoothed target taken
    out of the model's chances. Also ``accuracy``, and ``confidence``: the largest chance, on average."""
    sums = dict.fromkeys(("unmixed", "accuracy", "confidence"), 0.0)
    by_temperature, tokens = dict.fromkeys(TEMPERATURES, 0.0), 0
    with observing(model):
        for batch in batches:
            logits, labels = model(batch["input_ids"]), batch["labels"]
            is_target, chances = labels != -100, logits.softmax(-1)
            tokens += int(count_targets(labels))
            for temperature in TEMPERATURES:
                by_temperature[temperature] += cross_entropy(logits / temperature, labels, reduction="sum").item()
            sums["unmixed"] += cross_entropy(unmixed(chances, smoothing).log(), labels, reduction="sum").item()
            sums["accuracy"] += (chances.argmax(-1) == labels)[is_target].sum().item()
            sums["confidence"] += chances.amax(-1)[is_target].sum().item()
    by_temperature = {temperature: total / tokens for temperature, total in by_temperature.items()}
    means = {name: total / tokens for name, total in sums.items()}
    return {"loss": by_temperature[1.0], "by_temperature": by_temperature, **means}


def unmixed(chances: Tensor, smoothing: float) -> Tensor:
    """The chances ``p`` of which ``chances`` are the mixture (1 - s) p + s / V, or the nearest that are possible."""
    p = ((chances - smoothing / V) / (1 - smoothing)).clamp(min=1e-5)  # some are below 0, by noise
    return p / p.sum(-1, keepdim=True)


def lines_of(part: Corpus) -> list[list[int]]:
    """The lines of 1 to 46 bytes as ids, each with ``END`` before it, to start from, and behind it."""
    texts = (line for document in part.documents for line in document.text.split("\n"))
    return [[END, *line, END] for line in map(str.encode, texts) if 1 <= len(line) <= 46]


def masked_by_value(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """As ``ignore_index=END`` would: every label that is ``END`` is none, real ends too."""
    return batch | {"labels": batch["labels"].masked_fill(batch["labels"] == END, -100)}


def not_masked(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Padding is to be predicted like text."""
    return batch | {"labels": batch["labels"].masked_fill(batch["labels"] == -100, END)}


LABELS = {"by length": lambda batch: batch, "by value": masked_by_value, "not at all": not_masked}
"""how padding is taken out of the labels; ``collate`` does it by length"""


def train_on_lines(masked: str, steps: int) -> dict:
    """Train on lines padded with ``END``, the id that also ends each line. ``masked`` is one of ``LABELS``.

    Returns the chance of ``END`` ``at_ends`` of held-out lines, the share of 100 sampled lines that ``stop``, three
    ``samples``, and the held-out loss as this way of masking reports it, with lines of all lengths in one batch
    (``mixed``) and with lines of like length together (``alike``).
    """
    train, held_out = (lines_of(part) for part in load_corpus().split(validation_fraction=0.1))
    model, generator = small_model(0, 47), torch.Generator().manual_seed(0)
    optimizer, labels_of = build_adamw(model, lr=MAX_LR), LABELS[masked]
    for step in range(steps):
        chosen = torch.randint(0, len(train), (32,), generator=generator).tolist()
        batch = labels_of(collate([train[i] for i in chosen], pad_id=END))
        train_step(model, [batch], optimizer, lr=lr_at(step, steps))
    held_out = held_out[:512]
    batch, by_length = collate(held_out, pad_id=END), sorted(held_out, key=len)
    alike = [labels_of(collate(by_length[i : i + 32], pad_id=END)) for i in range(0, 512, 32)]
    with observing(model):
        chances = model(batch["input_ids"], attention_mask=batch["attention_mask"]).softmax(-1)
    sampled = generate(model, torch.full((100, 1), END), 46)[:, 1:]
    return {
        "at_ends": chances[..., END][batch["labels"] == END].mean().item(),
        "stop": (sampled == END).any(1).float().mean().item(),
        "samples": [ByteTokenizer().decode(row).split("\0")[0] for row in sampled[:3]],
        "mixed": evaluate(model, [labels_of(batch)]).loss,
        "alike": evaluate(model, alike).loss,
    }
