"""What notebook 02 trains and draws: one small model, every choice about its optimizer a keyword, and a ravine."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from tinytrain import (
    GPT,
    ByteTokenizer,
    ModelConfig,
    RowBatches,
    TokenRows,
    evaluate,
    load_corpus,
    param_groups,
    train_step,
    warmup_cosine,
)
from tinytrain.watch.plots import plot_paths

SMALL = ModelConfig(vocab_size=256, d_model=32, n_layers=2, n_heads=4, max_positions=32)
TEXTS = {"plenty": None, "little": 10_000}
"""how many characters of the training plays a run may see; None: all of them"""
Groups = list[dict]


class UntiedGPT(GPT):
    """The same model with an output head of its own."""

    def _tie(self) -> None:
        pass


def make_optimizer(
    name: str, groups: Groups, *, lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
) -> torch.optim.Optimizer:
    """``"SGD"``, ``"SGD, momentum"``, ``"Adam"`` (its decay is L2) or ``"AdamW"``, from torch."""
    adaptive = {"betas": betas, "eps": eps, "fused": True}
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "SGD": lambda: torch.optim.SGD(groups, lr=lr),
        "SGD, momentum": lambda: torch.optim.SGD(groups, lr=lr, momentum=0.9),
        "Adam": lambda: torch.optim.Adam(groups, lr=lr, **adaptive),
        "AdamW": lambda: torch.optim.AdamW(groups, lr=lr, **adaptive),
    }
    return makers[name]()


@cache
def rows_of(part: str) -> TokenRows:
    """Rows of 32 bytes: ``"plenty"`` or ``"little"`` of the training plays, or the ``"held out"`` ones."""
    train_text, held_out_text = load_corpus().split(validation_fraction=0.1)
    text = held_out_text.text if part == "held out" else train_text.text[: TEXTS[part]]
    return TokenRows(ByteTokenizer().encode(text), SMALL.max_positions, SMALL.vocab_size, part)


def train_one(
    *,
    optimizer: str = "AdamW",
    lr: float,
    seed: int,
    total_steps: int,
    weight_decay: float = 0.1,
    decay_on: str = "matrices",
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    max_grad_norm: float = 1.0,
    tied: bool = True,
    text: str = "plenty",
    batch_size: int = 16,
    late_steps: int = 0,
) -> dict:
    """Train the small model once and return plain numbers.

    ``held_out`` and ``train``: nats per byte at the end, on held-out rows and on rows of the training text;
    ``losses``: of each update; ``late``: held-out loss (64 rows) after each of the last ``late_steps`` updates;
    ``gain``: the mean of all norm gains. Warmup over a tenth of the run; then a cosine down to a tenth of ``lr``, or,
    with ``late_steps``, ``lr`` to the end. ``decay_on`` is ``"matrices"`` or ``"everything"``.
    """
    torch.manual_seed(seed)
    model = (GPT if tied else UntiedGPT)(SMALL)
    groups = param_groups(model, weight_decay)
    if decay_on == "everything":
        groups = [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    chosen = make_optimizer(optimizer, groups, lr=lr, betas=betas, eps=eps)
    data = RowBatches(rows=rows_of(text), batch_size=batch_size, seed=seed)
    schedule = {
        "max_lr": lr,
        "min_lr": lr if late_steps else lr / 10,
        "warmup_steps": total_steps // 10,
        "total_steps": total_steps,
    }
    probe = list(rows_of("held out").batches(64, limit=64))
    losses, late = [], []
    for step in range(total_steps):
        rate = warmup_cosine(step, **schedule)
        losses.append(train_step(model, data[step], chosen, lr=rate, max_grad_norm=max_grad_norm).loss)
        if step >= total_steps - late_steps:
            late.append(evaluate(model, probe).loss)
    return {
        "held_out": evaluate(model, rows_of("held out").batches(64, limit=1024)).loss,
        "train": evaluate(model, rows_of(text).batches(64, limit=512)).loss,
        "losses": losses,
        "late": late,
        "gain": mean_gain(model),
    }


def mean_gain(model: nn.Module) -> float:
    """The mean of all norm gains of a model; 1 when it is fresh."""
    gains = [module.weight.detach().flatten() for module in model.modules() if isinstance(module, nn.LayerNorm)]
    return torch.cat(gains).mean().item()


def oscillation(losses: list[float]) -> float:
    """How far a curve lies from its own straight line: the standard deviation of what is left (n-2), in nats."""
    y = torch.tensor(losses, dtype=torch.float64)
    x = torch.linspace(-1, 1, len(y), dtype=torch.float64)
    left = y - y.mean() - (x @ y) / (x @ x) * x
    return math.sqrt((left @ left).item() / (len(y) - 2))


def lr_range(losses: dict[float, float], within: float) -> float:
    """How wide the learning rates are whose loss is at most ``within`` nats above the best one: highest / lowest.

    ``losses`` maps a rate to a loss. Between two rates that were tried the loss is taken as a straight line over the
    logarithm of the rate; beyond the outermost nothing is claimed.
    """
    rates = sorted(rate for rate, loss in losses.items() if math.isfinite(loss))
    best = min(rates, key=losses.__getitem__)
    limit, i = losses[best] + within, rates.index(best)
    ends = [_crossing(rates[i::-1], losses, limit), _crossing(rates[i:], losses, limit)]
    return ends[1] / ends[0]


def _crossing(rates: list[float], losses: dict[float, float], limit: float) -> float:
    """Where the loss first passes ``limit``, going along ``rates``; the last of them if it never does."""
    for here, there in itertools.pairwise(rates):
        if losses[there] > limit:
            part = (limit - losses[here]) / (losses[there] - losses[here])
            return here * (there / here) ** part
    return rates[-1]


LOWEST = (1.0, 0.5)
"""where the ravine of the notebook's picture is lowest"""


def turned(steepness: Tensor, degrees: float) -> Tensor:
    """The matrix ``[2,2]`` of a ravine with ``steepness`` ``[2]`` along its own two directions, turned by ``degrees``.

    >>> turned(torch.tensor([1.0, 100.0]), 0)
    tensor([[  1.,   0.],
            [  0., 100.]])
    """
    angle = math.radians(degrees)
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return turn @ torch.diag(steepness) @ turn.T


def draw_ravine(paths: Mapping[str, Sequence[tuple[float, float]]], slopes: Tensor) -> Figure:
    """Paths over ½ (p - c)ᵀ ``slopes`` (p - c), with c = ``LOWEST``; the title says how far from c each one ends."""
    (a, b), (_, d) = slopes.tolist()
    left = ", ".join(f"{name} {math.dist(path[-1], LOWEST):.2f}" for name, path in paths.items())
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    ax = plot_paths(
        figure.subplots(),
        lambda X, Y: a * (X - 1) ** 2 / 2 + b * (X - 1) * (Y - 0.5) + d * (Y - 0.5) ** 2 / 2,
        paths,
        x_range=(-3.4, 2.4),
        y_range=(-1.4, 1.5),
        title=f"Left to the lowest point (+): {left}",
        x="weight x",
        y="weight y",
    )
    ax.plot(*LOWEST, "k+", markersize=12)
    return figure
