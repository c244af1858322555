"""A model small enough to be worked out on paper: a test can say beforehand which loss and gradient are right."""

import torch
from torch import Tensor, nn


class OnPaper(nn.Module):
    """Predicting token 1 costs ``input_id * sum(weight * prices)`` nats; token 0 gets the rest of the probability.

    So the mean loss has the gradient ``mean(input_ids) * prices``, and with the default prices it is simply
    ``weight * mean(input_ids)``. Loss and gradient are those of the package's own cross-entropy.
    """

    def __init__(self, start: float = 1.0, prices: tuple[float, ...] = (1.0,), dtype: torch.dtype = torch.float64):
        super().__init__()
        self.weight = nn.Parameter(torch.full((len(prices),), start, dtype=dtype))
        self.register_buffer("prices", torch.tensor(prices, dtype=dtype))

    def forward(self, input_ids: Tensor) -> Tensor:
        nats = input_ids * (self.weight * self.prices).sum()
        return torch.stack([torch.log(-torch.expm1(-nats)), -nats], dim=-1)


def costs(*nats: int) -> dict[str, Tensor]:
    """A micro-batch of one row whose targets cost these many nats at weight 1."""
    ids = torch.tensor([nats])
    return {"input_ids": ids, "labels": torch.ones_like(ids)}


def no_targets(*ids: int) -> dict[str, Tensor]:
    """A micro-batch of one row with nothing to predict."""
    return costs(*ids) | {"labels": torch.full((1, len(ids)), -100)}
