"""What the checks of notebook 09 train in two processes with the plan that an answer gives, and in one."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.distributed.group import total, world_size

V = 11  # kinds of token in the checks
LR = 0.5


def tiny_model() -> nn.Module:
    """The same in every process; in float64, so that order of adding up does not matter."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(V, 6), nn.Linear(6, V)).double()


def summed_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """The losses of all targets of rows of ids ``[B,T+1]``, added up."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def move(model: nn.Module) -> None:
    """One step of plain gradient descent; what is in ``.grad`` is used up."""
    for p in model.parameters():
        if p.grad is not None:
            p.data -= LR * p.grad
            p.grad = None


def average(model: nn.Module) -> None:
    """Put the mean over all processes in the place of each gradient, as DDP does; None counts as zeros."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        total(p.grad).div_(world_size())


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def apart(one: Tensor, other: Tensor) -> float:
    """Length of the difference, in parts of the second's length; infinity where it is NaN."""
    distance = float((one - other).norm() / other.norm())
    return distance if distance >= 0 else float("inf")


def train_on_rows(rank: int, plans: list[list[list[int]]], ids: Tensor) -> list[float]:
    """The loss of each update, over the rows of all processes; ``plans[rank][k]`` are this one's rows of update k."""
    model, losses = tiny_model(), []
    for rows in plans[rank]:
        loss = summed_loss(model, ids[rows]) if rows else sum(p.sum() for p in model.parameters()) * 0
        counted = total(torch.tensor(float(len(rows) * (ids.shape[1] - 1))).double())
        (loss / counted * world_size()).backward()
        average(model)
        move(model)
        losses.append(float(total(loss.detach()) / counted))
    return losses


def gradient_with(rank: int, weights: list[list[float]], micro_batches: list[list[Tensor]]) -> Tensor:
    """The gradient that is left after this process's micro-batches, each mean times its weight, and the average."""
    model = tiny_model()
    for weight, ids in zip(weights[rank], micro_batches[rank], strict=True):
        if ids.numel():
            (summed_loss(model, ids[None]) / (len(ids) - 1) * weight).backward()
    average(model)
    return flat([p.grad for p in model.parameters()])


def train_with(rank: int, plans: list[list[bool]], window: int, ids: list[Tensor]) -> list[Tensor]:
    """The weights after each update; process r exchanges where ``plans[r]`` says so."""
    model, weights, plan = tiny_model(), [], plans[rank]
    for number, exchange in enumerate(plan, start=1):
        summed_loss(model, ids[rank][number - 1][None]).div(20).backward()
        if exchange:
            average(model)
        if number % window == 0 or number == len(plan):
            move(model)
            weights.append(flat(list(model.parameters())))
    total(torch.zeros(1))  # nobody leaves before all have come, whatever the plan
    return weights


def weights_of_one(numbers: Sequence[int], window: int, ids: list[Tensor]) -> list[Tensor]:
    """The same in one process, which does the micro-batches of both."""
    model, weights = tiny_model(), []
    for start in range(0, max(numbers), window):
        mine = [each for n, own in zip(numbers, ids, strict=True) for each in own[start : min(start + window, n)]]
        for each in mine:
            (summed_loss(model, each[None]).div(20) / len(numbers)).backward()
        move(model)
        weights.append(flat(list(model.parameters())))
    return weights
