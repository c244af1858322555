"""Models with a fault inside, and one step with them."""

import torch
from torch import nn

from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.watch.nan_hunt import NanHunt


def a_model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def a_batch():
    ids = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def step(model, scale=1.0):
    ids, labels = a_batch()
    (cross_entropy(model(ids), labels) * scale).backward()


def hunted(model, *, scale=1.0, lines=False):
    with NanHunt(model, lines=lines) as hunt:
        step(model, scale)
    return hunt


class Overflowing(nn.Module):
    """Finite in, infinite out, in its own code."""

    def forward(self, x):
        y = x * 1e30
        return y * 1e30


class RmsNorm16(nn.Module):
    """A root mean square in FP16 by hand: its forward pass is finite where its derivative is not."""

    def forward(self, x):
        h = x.half()
        inverse = torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-7)
        return (h * inverse).float()


class Where(nn.Module):
    """Protects the way forward only: the branch that was not taken has an infinite slope at 0."""

    def forward(self, x):
        y = x - x.detach()
        return x + torch.where(y > 0, y.sqrt(), torch.zeros_like(y))


class Between(nn.Module):
    """Two modules, and an overflow in the code between them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.two(torch.exp(self.one(x) + 100.0))


def root_of_zero(x):
    """0, with a slope that is infinite."""
    return (x * 0).abs().sqrt()


class Root(nn.Module):
    def forward(self, x):
        return root_of_zero(x)


class Beside(nn.Module):
    """Reads the same tensor as a module, with an infinite slope; that module is well."""

    def __init__(self):
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.Tanh()

    def part(self, x):
        h = self.lin(x)
        return self.act(h) + root_of_zero(h)

    def forward(self, x):
        return self.part(x)


def squeezed(part):
    """A model with ``part`` in the place of its second block's feed-forward norm."""
    model = a_model()
    model.blocks[1].feed_forward_norm = part
    return model
