"""The runs of notebook 10: one small model under many settings, runs made sick, and numbers read from a log.

Importable, for runs may have processes of their own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tinytrain.corpus import load_corpus
from tinytrain.course import sick_parts as parts
from tinytrain.course.budget import by_budget
from tinytrain.course.handwritten import MendedLM, SmallLM
from tinytrain.course.runs import run_many
from tinytrain.course.sick import make
from tinytrain.course.spread import spread
from tinytrain.data import RowBatches, TokenRows
from tinytrain.forward import forward_logits
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.runlog import Run, read_run
from tinytrain.schedule import warmup_cosine
from tinytrain.step import evaluate, train_step
from tinytrain.tokenizer import ByteTokenizer

ROW_LENGTH = 32


class Scaled(GPT):
    """A GPT that multiplies its token embeddings by sqrt(d_model), as Vaswani et al. 2017 do (section 3.4)."""

    def _embed(self, input_ids: Tensor) -> Tensor:
        return super()._embed(input_ids) * math.sqrt(self.config.d_model)


def model_of(
    *,
    seed: int,
    d_model: int = 32,
    n_layers: int = 2,
    dropout: float = 0.0,
    embed_scale: bool = False,
    residual_scale: bool = True,
    norms: bool = True,
    init_std: float = 0.02,
) -> GPT:
    """A fresh model; one seed gives the same draw with and without either scale, with and without norms.

    Without ``residual_scale`` the outputs that add up in the residual stream are as large as all other weights;
    without ``norms`` each half of a block reads the stream as it is.
    """
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=256,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=4,
        max_positions=ROW_LENGTH,
        dropout=dropout,
        init_std=init_std,
    )
    model = Scaled(config) if embed_scale else GPT(config)
    if not residual_scale:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("out.weight"):
                    parameter.mul_(math.sqrt(2 * n_layers))
    if not norms:
        for block in model.blocks:
            block.attention_norm, block.feed_forward_norm = nn.Identity(), nn.Identity()
    return model


@cache
def shakespeare() -> tuple[TokenRows, TokenRows]:
    """Rows of 32 bytes to train on, and held-out rows from other plays."""
    tokenizer = ByteTokenizer()
    train, held_out = (
        TokenRows(tokenizer.encode(part.text), ROW_LENGTH, tokenizer.vocab_size, part.name)
        for part in load_corpus().split(validation_fraction=0.1)
    )
    return train, held_out


@cache
def first_rows(n_rows: int) -> TokenRows:
    """The first ``n_rows`` training rows."""
    return TokenRows(shakespeare()[0].ids[: n_rows * ROW_LENGTH + 1], ROW_LENGTH, 256)


def held_out_loss(model: nn.Module, limit: int = 256) -> float:
    """Nats per byte on ``limit`` held-out rows, spread over the text."""
    return evaluate(model, shakespeare()[1].batches(64, limit=limit)).loss


def train_run(
    *,
    batch_size: int = 16,
    max_lr: float = 4e-3,
    warmup_steps: int = 20,
    total_steps: int = 200,
    seed: int = 0,
    n_rows: int | None = None,
    weight_decay: float = 0.1,
    min_share: float = 0.1,
    eval_at: Sequence[int] = (),
    **model: Any,
) -> dict[str, Any]:
    """One run under a cosine that ends at ``min_share`` of ``max_lr``.

    ``held_out`` is the loss on 1,024 held-out rows at the end, ``evals`` the loss on 256 of them after each number of
    updates in ``eval_at``; ``losses`` and ``grad_norms`` have a number for each update. ``n_rows`` training rows are
    used, all if it is None; ``model`` is for ``model_of``.
    """
    net = model_of(seed=seed, **model)
    rows = shakespeare()[0] if n_rows is None else first_rows(n_rows)
    data, optimizer = (
        RowBatches(rows=rows, batch_size=batch_size, seed=seed),
        build_adamw(net, lr=max_lr, weight_decay=weight_decay),
    )
    losses, norms, evals = [], [], {}
    for step in range(total_steps):
        lr = warmup_cosine(
            step, max_lr=max_lr, min_lr=min_share * max_lr, warmup_steps=warmup_steps, total_steps=total_steps
        )
        report = train_step(net, data[step], optimizer, lr=lr)
        losses.append(report.loss)
        norms.append(report.grad_norm)
        if step + 1 in eval_at:
            evals[step + 1] = held_out_loss(net)
    return {"held_out": held_out_loss(net, 1024), "evals": evals, "losses": losses, "grad_norms": norms}


def steps_to(*, target: float, batch_size: int, lr: float, seed: int, most_steps: int) -> float:
    """Updates until the held-out loss is ``target`` nats, at a level lr behind 8 updates of warmup.

    The loss is taken after every twentieth part of the way, with a straight line between; infinity where
    ``most_steps`` are not enough.
    """
    net = model_of(seed=seed)
    data, optimizer = RowBatches(rows=shakespeare()[0], batch_size=batch_size, seed=seed), build_adamw(net, lr=lr)
    before, loss_before, due = 0, held_out_loss(net), 40
    for step in range(most_steps):
        train_step(net, data[step], optimizer, lr=lr * min(1.0, (step + 1) / 8))
        if step + 1 >= due:
            loss = held_out_loss(net)
            if loss <= target:
                return before + (step + 1 - before) * (loss_before - target) / (loss_before - loss)
            before, loss_before, due = step + 1, loss, step + 2 + (step + 1) // 20
    return math.inf


def stream(model: GPT, input_ids: Tensor) -> dict[str, list[float]]:
    """Through the depth of a fresh model: the residual stream's standard deviation behind each block, and the
    2-norm of the gradient of each block's weights."""
    sizes: list[float] = []
    hooks = [
        block.register_forward_hook(lambda _m, _in, out: sizes.append(out.std(-1).mean().item()))
        for block in model.blocks
    ]
    labels = input_ids.roll(-1, dims=1)
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(input_ids).flatten(0, 1), labels.flatten()).backward()
    for hook in hooks:
        hook.remove()
    grads = [
        math.sqrt(sum(p.grad.square().sum().item() for p in block.parameters() if p.grad is not None))
        for block in model.blocks
    ]
    model.zero_grad()
    return {"std": sizes, "grad": grads}


def jumps(values: Sequence[float], *, times: float, after: int = 40, window: int = 20) -> list[int]:
    """The updates (counted from 0) whose value is more than ``times`` the median of the ``window`` before it."""
    return [
        step for step in range(max(after, window), len(values))
        if values[step] > times * median(values[step - window : step])
    ]  # fmt: skip


_made: dict[tuple, Any] = {}
FEW = 6


def several(function: Callable[..., Any], cases: Sequence[Mapping[str, Any]]) -> list[Any]:
    """``[function(**case) for case in cases]`` in two processes. A run made before is not repeated.

    Processes take seconds to start, so none are started for a few runs, nor in the ``ci`` budget, which counts them.
    """
    keys = [(function.__name__, repr(sorted(case.items()))) for case in cases]
    new = {key: case for key, case in zip(keys, cases, strict=True) if key not in _made}
    if new:
        train = by_budget(ci=_one_by_one, laptop=run_many if len(new) > FEW else _one_by_one)
        _made.update(zip(new, train(function, list(new.values())), strict=True))
    return [_made[key] for key in keys]


Label = TypeVar("Label")


def over_seeds(
    function: Callable[..., Any], arms: Mapping[Label, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[Label, list[Any]]:
    """What ``function(seed=seed, **arm)`` returns, for each arm by its label: a list in the order of ``seeds``."""
    found = iter(several(function, [{**arm, "seed": seed} for arm in arms.values() for seed in seeds]))
    return {label: [next(found) for _ in seeds] for label in arms}


def final_order(runs: Sequence[Mapping[str, Any]], *, at: int) -> float:
    """Of all pairs of ``runs`` (as ``train_run`` returns them), % that stand after ``at`` updates as at the end."""
    pairs = [(a["evals"][at] < b["evals"][at]) == (a["held_out"] < b["held_out"]) for a, b in combinations(runs, 2)]
    return 100 * sum(pairs) / len(pairs)


def ends(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """The held-out loss at the end of each of ``runs``, as ``train_run`` returns them."""
    return [run["held_out"] for run in runs]


def lowest(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """The lowest held-out loss of each of ``runs`` on its way."""
    return [min(run["evals"].values()) for run in runs]


def gain(name: str, before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """By how much ``after`` is lower, seed by seed: the mean, and the spread of the differences."""
    lower = [a - b for a, b in zip(before, after, strict=True)]
    return mean(lower), spread(f"10 {name}", {"difference": lower})


def _one_by_one(function: Callable[..., Any], cases: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [function(**case) for case in cases]


ALONE = "graphs kept"  # what a process has given back before it may take again unseen, so this one has its own


def make_all(names: Sequence[str], folder: str | Path, seed: int = 0) -> dict[str, Run]:
    """The sick and healthy runs called ``names``, each with its log in a folder inside ``folder``, made once."""
    return {name: _made_once(name, Path(folder) / _slug(name), seed) for name in names}


def _made_once(name: str, folder: Path, seed: int) -> Run:
    if folder.exists():
        return read_run(folder)
    if name == ALONE:
        return run_many(make, [{"name": name, "folder": folder, "seed": seed}], processes=1)[0]
    return make(name, folder, seed)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def train_masked(model: nn.Module, folder: str | Path, seed: int = 0) -> Run:
    """``model`` on rows of 8 bytes, with an attention mask of ones beside each batch."""
    data = RowBatches(rows=parts.rows(30_000, row_length=8), batch_size=64, seed=seed)
    with_mask = parts.changed(
        data, lambda _n, micro: [b | {"attention_mask": torch.ones_like(b["labels"])} for b in micro]
    )
    parts.train(Path(folder), seed, model=lambda: model, data=with_mask, max_lr=1e-2, total_steps=200, validation=None)
    return read_run(folder)


def loss_without_future(model: nn.Module) -> tuple[float, float]:
    """The loss in nats on 512 held-out rows of 8 bytes: of whole rows, and with each row cut off behind the byte that
    is read last, so that nothing can be seen that comes later."""
    batch = parts.rows(512, held_out=True, row_length=8).stack(list(range(512)))
    ids, labels = batch["input_ids"], batch["labels"]
    with torch.enable_grad():  # without gradients nn.TransformerEncoder takes another road
        whole = forward_logits(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).detach()
        cut = [ids[:, : t + 1] for t in range(ids.shape[1])]
        last = [forward_logits(model, {"input_ids": x, "attention_mask": torch.ones_like(x)})[:, -1] for x in cut]
    return cross_entropy(whole, labels).item(), cross_entropy(torch.stack(last, 1).detach(), labels).item()


def noisy(folder: str | Path, seed: int = 0) -> Run:
    """A healthy run with two rows to an update."""
    parts.train(Path(folder), seed, data=parts.batches(seed, batch_size=2), max_lr=3e-3, total_steps=600, eval_every=60)
    return read_run(folder)


def two_curves(folder: Path) -> tuple[dict[str, nn.Module], dict[str, Run]]:
    """``"one"``, whose mask is the wrong way round, the same ``"mended"``, and ``"the other"``: models and logs.

    ``"the other"`` is the healthy run with two rows to an update; its model is not kept.
    """
    models, logs = {}, {"the other": noisy(folder / "noisy")}
    for name, kind in {"one": SmallLM, "mended": MendedLM}.items():
        torch.manual_seed(0)
        models[name] = kind(vocab_size=256, d_model=64, n_layers=2, n_heads=4, max_positions=64)
        logs[name] = train_masked(models[name], folder / name)
    return models, logs


def hot(*, max_lr: float, seed: int, warmup_steps: int = 100) -> Run:
    """The small healthy run with another ``max_lr``, and a warmup over half of its 200 updates."""
    with TemporaryDirectory() as folder:
        parts.train(Path(folder) / "run", seed, max_lr=max_lr, warmup_steps=warmup_steps)
        return read_run(Path(folder) / "run")


def first_signs(run: Run, after: int = 20) -> dict[str, float] | None:
    """What the gradient's norm did before the loss first jumps, to more than 1.25 times the median of 20 before it.

    ``"past 100"``: whether the norm was above 100 by then. ``"lead"``: by how many updates its first jump, to more
    than 5 of its own medians, came earlier; 0 if it did not. None for a run whose loss never jumps, and for one that
    is worse after ``after`` updates than at its start, for that was broken before anything could be compared.
    """
    loss, norm = run.series("loss")[1], run.series("grad_norm")[1]
    falls = jumps(loss, times=1.25, after=after)
    if not falls or loss[after - 1] > loss[0]:
        return None
    leads = [falls[0] - at for at in jumps(norm, times=5, after=after) if at <= falls[0]]
    return {"past 100": float(any(value > 100 for value in norm[: falls[0] + 1])), "lead": max(leads, default=0)}


def early_share(run: Run) -> float:
    """Of all that a run's training loss wins, the share that the first fifth of its updates wins; 0 if it wins less
    than a tenth of its first loss."""
    losses = run.series("loss")[1]
    fifth, end = len(losses) // 5, median(losses[-20:])
    if end > 0.9 * losses[0]:
        return 0.0
    return (losses[0] - median(losses[fifth - 10 : fifth + 10])) / (losses[0] - end)


def scaled_deep(folder: str | Path, seed: int = 0) -> Run:
    """The healthy run of 12 layers and 100 updates, beside which "no residual scaling" must be seen."""
    parts.train(Path(folder), seed, model=lambda: parts.small(seed, n_layers=12), total_steps=100)
    return read_run(folder)


def log_of(name: str, seed: int) -> tuple[list[float], dict[int, float]]:
    """Training losses, and held-out losses by update, of a sick or healthy run that is made for this and not kept."""
    with TemporaryDirectory() as folder:
        run = make(name, Path(folder) / "run", seed)
    evals = {int(r["step"]): r["eval_loss"] for r in run if r.get("eval_loss") is not None}
    return [r["loss"] for r in run], evals
