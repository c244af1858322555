"""The laws' own model, their own rows, and the truth about both: what a trainer is tried on."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]

V, T = 23, 12
BAD_FORWARD, BAD_BACKWARD = 21, 22
"""tokens that are in no ordinary row: the model's output, or only its gradient, is not finite where one is read"""


class ProbeModel(nn.Module):
    """A causal model: each position knows the mean of what has been read so far. It tells ``tape`` of each call."""

    def __init__(self, tape: "Noting", *, dropout: float = 0.0, width: int = 8) -> None:
        super().__init__()
        self.__dict__["tape"] = tape
        self.tokens, self.mix, self.norm = nn.Embedding(V, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, V)
        nn.init.normal_(self.tokens.weight, std=0.5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits ``[B,T,V]``; where ``attention_mask`` ``[B,T]`` is 0, nothing is read."""
        x = self.tokens(input_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else (attention_mask != 0).long()
        x = (x * real[..., None]).cumsum(1) / real.cumsum(1).clamp(min=1)[..., None]
        bad = (input_ids == BAD_FORWARD)[..., None]
        if bad.any():
            x = x.masked_fill(bad, math.nan)
        if (input_ids == BAD_BACKWARD).any():
            x = x + (x * 0).abs().sqrt()  # the root of 0 is 0, and its slope there is infinite
        logits = self.head(self.dropout(self.norm(x + torch.tanh(self.mix(x)))))
        self.tape.called(self, input_ids, logits)
        return logits


class Noting:
    """Takes no notes; the tape does."""

    def called(self, model: nn.Module, input_ids: Tensor, logits: Tensor) -> None:
        """A model was called."""


def rows_of(number: int, lengths: Sequence[int], *, length: int = T) -> Batch:
    """Rows of random tokens, each of its own length in targets, padded on the right. ``number`` is their seed."""
    generator = torch.Generator().manual_seed(1000 + number)
    batch = {"input_ids": torch.zeros(len(lengths), length, dtype=torch.long)}
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    for row, n in enumerate(lengths):
        ids = torch.randint(1, BAD_FORWARD, (n + 1,), generator=generator)
        batch["input_ids"][row, :n], batch["labels"][row, :n] = ids[:-1], ids[1:]
    return batch


def cut(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """The batch in micro-batches of so many rows."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [{k: v[end - size : end].clone() for k, v in batch.items()} for size, end in zip(sizes, ends, strict=True)]


def ordinary(number: int) -> list[Batch]:
    """Batch ``number`` of an ordinary run: six rows in micro-batches of three, with as many targets in each."""
    return cut(rows_of(number, [T] * 6), [3, 3])


def spoiled(micro_batches: Sequence[Batch], token: int) -> list[Batch]:
    """The same with one bad token in the first micro-batch."""
    spoiled = [{name: value.clone() for name, value in batch.items()} for batch in micro_batches]
    spoiled[0]["input_ids"][0, 3] = token
    return spoiled


# The truth


def token_losses(model: nn.Module, batch: Batch, labels: Tensor | None = None, *, mask: bool = True) -> Tensor:
    """−ln of the chance given to each label ``[B,T]``, written out by hand; 0 where there is none."""
    labels = batch["labels"] if labels is None else labels
    given = {name: value for name, value in batch.items() if name == "attention_mask" and mask}
    chances = torch.log_softmax(model(batch["input_ids"], **given).double(), -1)
    losses = -chances.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return losses * (labels != -100)


def true_loss(model: nn.Module, micro_batches: Sequence[Batch]) -> Tensor:
    """The sum of all token losses over the number of all targets."""
    total = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    return torch.stack([token_losses(model, batch).sum() for batch in micro_batches]).sum() / total


def gradient_of(
    weights: Mapping[str, Tensor], loss: Callable[[nn.Module, Sequence[Batch]], Tensor], batches: Sequence[Batch]
) -> Tensor:
    """The gradient of ``loss(model, batches)`` at these weights, as one vector in float64."""
    model = model_with(weights)
    loss(model, batches).backward()
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


def model_with(weights: Mapping[str, Tensor]) -> ProbeModel:
    """A model in float64, without dropout, that has these weights."""
    states = torch.get_rng_state()
    model = ProbeModel(Noting(), width=weights["mix.weight"].shape[0]).double()
    torch.set_rng_state(states)
    model.load_state_dict({name: value.double() for name, value in weights.items()})
    return model


def _per_micro_batch(
    mean: Callable[[nn.Module, Batch], Tensor], average: bool = True
) -> Callable[[nn.Module, Sequence[Batch]], Tensor]:
    def loss(model: nn.Module, batches: Sequence[Batch]) -> Tensor:
        parts = torch.stack([mean(model, batch) for batch in batches])
        return parts.mean() if average else parts.sum()

    return loss


def _mean(model: nn.Module, batch: Batch) -> Tensor:
    return token_losses(model, batch).sum() / (batch["labels"] != -100).sum()


def _over_positions(model: nn.Module, batch: Batch) -> Tensor:
    return token_losses(model, batch).mean()


def _padding_as_token_0(model: nn.Module, batch: Batch) -> Tensor:
    return token_losses(model, batch, batch["labels"].clamp(min=0)).mean()


def _all_positions(model: nn.Module, batches: Sequence[Batch]) -> Tensor:
    losses = [token_losses(model, batch) for batch in batches]
    return torch.stack([each.sum() for each in losses]).sum() / sum(each.numel() for each in losses)


def _padding_targets(model: nn.Module, batches: Sequence[Batch]) -> Tensor:
    losses = [token_losses(model, batch, batch["labels"].clamp(min=0)) for batch in batches]
    return torch.cat([each.flatten() for each in losses]).mean()


def _moved(batch: Batch, by: int) -> Tensor:
    if by == 0:
        return batch["input_ids"]
    later = torch.full_like(batch["labels"], -100)
    later[:, :-1] = batch["labels"][:, 1:]
    return later


def _shifted(by: int) -> Callable[[nn.Module, Sequence[Batch]], Tensor]:
    def loss(model: nn.Module, batches: Sequence[Batch]) -> Tensor:
        labels = [_moved(batch, by) for batch in batches]
        total = sum(int((each != -100).sum()) for each in labels)
        parts = [token_losses(model, batch, each).sum() for batch, each in zip(batches, labels, strict=True)]
        return torch.stack(parts).sum() / total

    return loss


MISTAKES: dict[str, Callable[[nn.Module, Sequence[Batch]], Tensor]] = {
    "it averages the means of the micro-batches; divide the sum of all token losses by the number of all targets":
        _per_micro_batch(_mean),
    "it adds up the micro-batches' means without dividing by all targets": _per_micro_batch(_mean, average=False),
    "padding counts in the divisor: it divides by positions, and not by targets": _all_positions,
    "padding counts in the divisor, and the micro-batches' means are averaged": _per_micro_batch(_over_positions),
    "padding counts as a target: leave out the positions whose label is -100": _padding_targets,
    "padding counts as a target, and the micro-batches' means are averaged": _per_micro_batch(_padding_as_token_0),
    "the labels are shifted once more: labels[t] is already the token behind position t": _shifted(1),
    "the labels are not used: it predicts the input itself": _shifted(0),
    "only the last micro-batch counts: is zero_grad() called between the micro-batches?":
        lambda model, batches: token_losses(model, batches[-1]).sum()
        / sum(int((batch["labels"] != -100).sum()) for batch in batches),
    "only the last micro-batch counts": lambda model, batches: _mean(model, batches[-1]),
    "only the first micro-batch counts": lambda model, batches: _mean(model, batches[0]),
    "the loss is summed and not divided": lambda model, batches: torch.stack(
        [token_losses(model, batch).sum() for batch in batches]
    ).sum(),
    "attention_mask does not reach the model: hand it everything in the batch but the labels":
        lambda model, batches: torch.stack([token_losses(model, batch, mask=False).sum() for batch in batches]).sum()
        / sum(int((batch["labels"] != -100).sum()) for batch in batches),
}  # fmt: skip
"""what an update's gradient may be the gradient of, in place of the loss"""


def mistake_behind(found: Tensor, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> str:
    """Which mistake gives this gradient, in words; "" if none of those that are known."""
    right = gradient_of(weights, true_loss, batches)
    wrong = {words: gradient_of(weights, loss, batches) for words, loss in MISTAKES.items()}
    for words, gradient in wrong.items():
        if distance(gradient, right) > 1e-3 and distance(found, gradient) < 1e-4:
            return words
    for words, gradient in wrong.items():  # the same mistake over another divisor
        apart = distance(_of_length_1(gradient), _of_length_1(right))
        if found.norm() > 0 and apart > 1e-2 and distance(_of_length_1(found), _of_length_1(gradient)) < 1e-4:
            return words
    along = float(found @ right / (found.norm() * right.norm())) if found.norm() > 0 else 0.0
    if along > 1 - 1e-9:
        times = float(found.norm() / right.norm())
        return f"the direction is right, and the length is {times:.4g} times what it should be"
    return ""


def _of_length_1(vector: Tensor) -> Tensor:
    return vector.double() / vector.double().norm()


def distance(found: Tensor, wanted: Tensor) -> float:
    """How far two vectors lie apart, in lengths of the second; infinite where one is not finite."""
    gap = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return gap if math.isfinite(gap) else math.inf


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's generators."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
