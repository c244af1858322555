"""For notebook 07: runs in several precisions, a softmax that overflows, and pictures of bits and ranges."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from tinytrain.corpus import load_corpus
from tinytrain.course.runs import run_many
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, Attention, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.watch.svg import INKS

Batch = dict[str, Tensor]
ROW_LENGTH, BATCH_SIZE = 32, 8  # tokens in a row, rows in an update


def fresh(seed: int = 0) -> GPT:
    """The small model of this notebook: 2 layers, width 32."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 256, "d_model": 32, "n_layers": 2, "n_heads": 2, "max_positions": ROW_LENGTH}
    return GPT(ModelConfig(**sizes))


@cache
def texts() -> tuple[TokenRows, list[Batch]]:
    """Rows to train on, and 256 rows of held-out plays in batches."""
    parts = load_corpus().split(validation_fraction=0.1)
    training, held_out = (TokenRows(ByteTokenizer().encode(part.text), ROW_LENGTH, 256, part.name) for part in parts)
    return training, list(held_out.batches(64, limit=256))


def batches(seed: int = 0) -> RowBatches:
    return RowBatches(rows=texts()[0], batch_size=BATCH_SIZE, seed=seed)


class HandSoftmax(nn.Module):
    """Attention with a softmax written out: exponentials over their sum, computed in ``dtype``.

    ``shift`` subtracts the largest score of each row first, as torch's softmax does; then no exponential is above 1.
    Scores are not divided by the root of a head's width, so they grow fast. Of the largest scores of all rows of the
    last pass, ``top`` is the highest and ``low`` the lowest. On a GPU autocast would run ``exp`` in float32; the chosen
    ``dtype`` is forced on every device.
    """

    def __init__(self, attention: Attention, dtype: torch.dtype, *, shift: bool = False) -> None:
        super().__init__()
        self.attention, self.dtype, self.shift, self.top, self.low = attention, dtype, shift, 0.0, 0.0

    def forward(self, x: Tensor, _attend: object) -> Tensor:
        B, T, D = x.shape
        H = self.attention.n_heads
        q, k, v = self.attention.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        with torch.autocast(x.device.type, enabled=False):
            scores = (q.to(self.dtype) @ k.to(self.dtype).transpose(-1, -2)).masked_fill(_future(T), -math.inf)
            largest = scores.detach().amax(-1)
            self.top, self.low = float(largest.max()), float(largest.min())
            if self.shift:
                scores = scores - scores.amax(-1, keepdim=True)
            e = torch.exp(scores)
            mixed = (e / e.sum(-1, keepdim=True)).to(v.dtype) @ v
        return self.attention.out(mixed.transpose(1, 2).reshape(B, T, D))


def _future(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)


ARMS = {
    "FP32": torch.float32,
    "BF16 autocast": torch.bfloat16,
    "FP16 autocast": torch.float16,
    "pure BF16": torch.float32,  # no autocast: weights and inputs are BF16 already
    "BF16 weights": torch.float32,
    "BF16 weights, rounded by lot": torch.float32,
}


def train(
    arm: str = "FP32",
    *,
    lr: float = 1e-3,
    seed: int = 0,
    steps: int = 400,
    optimizer: str = "AdamW",
    eps: float = 1e-8,
    max_grad_norm: float = 1.0,
    scale: float = 1.0,
    growth_interval: int | None = None,
    clip_scaled: bool = False,
    softmax: torch.dtype | None = None,
    shift: bool = False,
) -> dict[str, Any]:
    """Train the small model on Shakespeare in one of ``ARMS``.

    ``BF16 autocast`` and ``FP16 autocast`` keep float32 weights; ``pure BF16`` is ``model.to(torch.bfloat16)``, its
    moments too; ``BF16 weights`` computes in float32 and rounds each weight to BF16 after each update, to the nearest
    or by lot. ``scale`` multiplies the loss; with a ``growth_interval`` torch's GradScaler moves it and skips updates,
    and without one it stays and nothing is skipped. ``clip_scaled`` clips before unscaling. ``softmax`` writes the
    softmax of attention out, in that type. A loss that is not finite ends a run without a GradScaler.

    Returns for each update ``losses``, ``scales``, ``norms`` (before clipping), ``skipped``, and, with ``softmax``,
    ``tops`` and ``lows`` (highest and lowest of the rows' largest attention scores); and ``stuck``, the mean share of
    weights that an update left as they were; ``held_out``, nats per byte of the weights evaluated in float32, with a
    sound softmax. With ``softmax`` also ``lost_in_fp16``, the share of held-out rows without a finite loss when it is
    written out in FP16.
    """
    model = fresh(seed)
    if softmax is not None:
        for block in model.blocks:
            block.attention = HandSoftmax(block.attention, softmax, shift=shift)
    if arm == "pure BF16":
        model.to(torch.bfloat16)
    _keep_bf16(arm, model, None)
    update = build_adamw(model, lr=lr, eps=eps) if optimizer == "AdamW" else torch.optim.SGD(model.parameters(), lr=lr)
    moving = growth_interval is not None
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval or 1, enabled=moving)
    data, lots = batches(seed), torch.Generator().manual_seed(seed)
    log: dict[str, Any] = {name: [] for name in ("losses", "scales", "norms", "skipped", "tops", "lows", "stuck")}
    for step in range(steps):
        update.zero_grad()
        loss = loss_of(model, data[step][0], ARMS[arm])
        scaler.scale(loss if moving else loss * scale).backward()
        if not clip_scaled:
            _unscale(scaler, update, scale)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        before = [p.detach().clone() for p in model.parameters()]
        log["losses"].append(loss.item())
        log["scales"].append(scaler.get_scale() if moving else scale)
        log["norms"].append(norm.item())
        log["skipped"].append(moving and not math.isfinite(norm))
        scaler.step(update)
        scaler.update()
        _keep_bf16(arm, model, lots)
        same = sum(int((p == old).sum()) for p, old in zip(model.parameters(), before, strict=True))
        log["stuck"].append(same / model.num_parameters())
        log["tops"].append(max(getattr(block.attention, "top", 0.0) for block in model.blocks))
        log["lows"].append(min(getattr(block.attention, "low", 0.0) for block in model.blocks))
        if not (moving or math.isfinite(loss.item())):
            break
    log["stuck"] = sum(log["stuck"]) / len(log["stuck"])
    model.float()
    if softmax is not None:
        log["lost_in_fp16"] = _rows_lost(_with_softmax(model, torch.float16, shift=False))
        _with_softmax(model, torch.float32, shift=True)
    log["held_out"] = evaluate(model, texts()[1]).loss
    return log


def _unscale(scaler: torch.amp.GradScaler, update: torch.optim.Optimizer, scale: float) -> None:
    scaler.unscale_(update)
    if not scaler.is_enabled():
        for group in update.param_groups:
            for p in group["params"]:
                p.grad /= scale


def _with_softmax(model: GPT, dtype: torch.dtype, *, shift: bool) -> GPT:
    for block in model.blocks:
        block.attention.dtype, block.attention.shift = dtype, shift
    return model


@torch.no_grad()
def _rows_lost(model: GPT) -> float:
    finite = [model(batch["input_ids"]).isfinite().all(-1).all(-1) for batch in texts()[1]]
    return 1 - torch.cat(finite).float().mean().item()


def train_all(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``train(**each)`` for each of the settings; many of them in two processes, a few in this one."""
    return run_many(train, settings) if len(settings) > 8 else [train(**each) for each in settings]


def loss_of(model: nn.Module, batch: Batch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean loss in nats per target: the forward pass under autocast in ``dtype``, the loss itself in float32."""
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        logits = model(batch["input_ids"])
    return F.cross_entropy(logits.float().flatten(0, 1), batch["labels"].flatten())


@torch.no_grad()
def _keep_bf16(arm: str, model: nn.Module, lots: torch.Generator | None) -> None:
    if arm.startswith("BF16 weights"):
        for p in model.parameters():
            p.copy_(by_lot(p, lots) if lots is not None and arm.endswith("by lot") else p.to(torch.bfloat16).float())


def by_lot(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Float32 values rounded to one of their two BF16 neighbours, the nearer the likelier, so that the mean is right.

    A random number is added to the 16 bits that BF16 drops, and they are cut off.
    """
    bits = values.detach().view(torch.int32)
    lot = torch.randint(0, 2**16, bits.shape, generator=generator, dtype=torch.int32)
    return ((bits + lot) & -(2**16)).view(torch.float32)


def values_by_place(
    model: GPT, batch: Batch, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What some modules of the model pass on, and the gradients that come back to them, divided by ``scale``.

    Forward under autocast in ``dtype``; the backward pass runs in the same type. Both dicts go by place, from the
    input to the output.
    """
    passed, returned, handles = {}, {}, []
    places = {"embedding": model.tokens}
    for i, block in enumerate(model.blocks, start=1):
        places |= {f"attention {i}": block.attention, f"feed-forward {i}": block.feed_forward}
    places |= {"last norm": model.norm, "logits": model.head}
    for name, module in places.items():

        def keep(_module: nn.Module, _inputs: object, output: Tensor, name: str = name) -> None:
            passed[name] = output.detach().float()
            output.register_hook(lambda gradient: returned.update({name: gradient.float() / scale}))

        handles.append(module.register_forward_hook(keep))
    model.zero_grad()
    (loss_of(model, batch, dtype) * scale).backward()
    for handle in handles:
        handle.remove()
    return passed, {name: returned[name] for name in places}


def powers(values: Tensor, low: int = -44, high: int = 18) -> list[float]:
    """The share of ``values`` between each power of two and the next, from 2^low to 2^high; zeros are left out.

    >>> powers(torch.tensor([0.25, 1.0, 1.5, 0.0]), low=-2, high=1)
    [0.3333333432674408, 0.0, 0.6666666865348816]
    """
    exponents = torch.frexp(values[values != 0])[1] - 1
    return [(exponents == power).float().mean().item() for power in range(low, high)]


FORMATS = {"FP32": (8, 23), "BF16": (8, 7), "FP16": (5, 10)}
"""bits of the exponent and of the mantissa; one more bit is the sign"""
DTYPES = {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}


def bits_of(value: float, name: str) -> str:
    """The bits that a format of ``FORMATS`` stores for ``value``, sign first.

    >>> bits_of(1.0, "BF16"), bits_of(-2.0, "FP16")
    ('0011111110000000', '1100000000000000')
    """
    stored = torch.tensor(value, dtype=torch.float64).to(DTYPES[name])
    width, whole = (32, torch.int32) if name == "FP32" else (16, torch.int16)
    return f"{stored.view(whole).item() & (2**width - 1):0{width}b}"


def draw_bits(number: float, power: int) -> Figure:
    """The bits of ``number`` times 2^``power`` in each format, what they stand for, and how far off that is."""
    value = number * 2.0**power
    figure = Figure(figsize=(9.2, 2.5), layout="constrained")
    ax = figure.subplots()
    for row, (name, (exponent, mantissa)) in enumerate(FORMATS.items()):
        inks = ["#777777"] + [INKS[1][0]] * exponent + [INKS[0][0]] * mantissa
        for place, (bit, ink) in enumerate(zip(bits_of(value, name), inks, strict=True)):
            ax.bar(place, 0.8, width=0.92, bottom=-row - 0.4, color=ink, alpha=0.3 if bit == "0" else 0.75)
            ax.text(place, -row, bit, ha="center", va="center", fontsize=8)
        ax.text(-1, -row, name, ha="right", va="center", fontsize=10)
        stored = torch.tensor(value, dtype=torch.float64).to(DTYPES[name]).item()
        off = f"off by {abs(stored / value - 1):.1e} of it" if stored not in (0, value) else ""
        says = "became 0" if stored == 0 else "became infinite" if math.isinf(stored) else off or "exact"
        ax.text(32.3, -row, f"{stored:.7g}, {says}", va="center", fontsize=9)
    title = f"{number:g} times 2^{power} = {value:.7g}: sign (grey), exponent (orange), mantissa (blue)"
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xlim(-4, 49)
    ax.set_ylim(-2.6, 0.6)
    ax.axis("off")
    return figure


def plot_ranges(ax: Axes, limits: Mapping[str, tuple[float, float, float]], *, title: str) -> Axes:
    """Each format as a bar from its smallest subnormal (light), over its smallest normal, to its largest number."""
    for row, edges in enumerate(limits.values()):
        low, normal, high = map(math.log10, edges)
        ink = INKS[row][0]
        ax.barh(-row, normal - low, left=low, height=0.34, color=ink, alpha=0.3)
        ax.barh(-row, high - normal, left=normal, height=0.34, color=ink)
        words = zip((low, normal, high), edges, ("right", "left", "left"), strict=True)
        for x, edge, side in words:
            shift = {"right": -0.8, "left": 0.8}[side]
            inside = x == normal
            ax.text(x + shift, -row + 0.38 * inside, f"{edge:.2g}", ha=side, va="center", fontsize=9)
    ax.set_yticks([-row for row in range(len(limits))], list(limits))
    ax.set_ylim(-len(limits) + 0.5, 0.7)
    ax.set_xlim(-56, 52)
    ax.set_xticks(range(-40, 41, 20), [f"1e{power}" if power else "1" for power in range(-40, 41, 20)])
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xlabel("size of a number (light: with fewer digits than usual)")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def plot_powers(ax: Axes, values: Mapping[str, Tensor], *, title: str, low: int = -44, high: int = 18) -> Axes:
    """One row for each place: how its values spread over the powers of two, dark where many lie; FP16's limits."""
    shares = np.array([powers(each, low, high) for each in values.values()])
    ax.imshow(shares, cmap="Blues", aspect="auto", extent=(low, high, len(values) - 0.5, -0.5), vmin=0, vmax=0.3)
    for edge in (-24, -14, 16):
        ax.axvline(edge, color="#b00020", linewidth=1.2, linestyle=":" if edge == -14 else "-")
    ax.set_yticks(range(len(values)), list(values))
    ax.set_xticks(range(-40, high, 10), [f"2^{power}" for power in range(-40, high, 10)])
    ax.set_title(title, loc="left", fontsize=10)
    return ax
