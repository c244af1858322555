"""The exercises of notebook 14, steps to a trainer of one's own: an update, an evaluation, a snapshot."""

import io
import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tinytrain.course.drawn_14 import copies, fresh_model, masked, packed, unchanged, uneven
from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.laws.probe import (
    BAD_BACKWARD,
    BAD_FORWARD,
    Batch,
    ProbeModel,
    distance,
    gradient_of,
    model_with,
    spoiled,
    true_loss,
)
from tinytrain.course.laws.tape import furthest, generator_states, same, state_of, weights_of
from tinytrain.course.likely_14 import behind_counts, behind_fork, behind_loss, behind_number, behind_update


def one_update(
    model: nn.Module, micro_batches: list[dict], optimizer: torch.optim.Optimizer, lr: float, limit: float
) -> dict:
    """One update from all micro-batches together.

    Of each dict, ``labels`` ``[B,T]`` stay here (-100: no target); the rest goes to the model by name,
    which returns logits ``[B,T,V]``. No module's mode changes. The loss is the sum of all token losses
    over the number of all targets. ``limit`` bounds the gradient's 2-norm (torch's ``clip_grad_norm_``),
    and every group of the optimizer gets the learning rate ``lr``. If there is no target, or the loss or
    the norm is not finite, nothing moves: no weight, no moment, no learning rate.
    Returns {"loss": float, "grad_norm": float before clipping, "skipped": bool}.
    """
    optimizer.zero_grad()
    targets = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    loss = 0.0
    for batch in micro_batches:
        logits = model(**{name: value for name, value in batch.items() if name != "labels"})
        part = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
        (part / max(targets, 1)).backward()
        loss += part.item() / max(targets, 1)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    skipped = targets == 0 or not torch.tensor([loss, norm]).isfinite().all()
    if not skipped:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return {"loss": loss, "grad_norm": norm, "skipped": skipped}


def check_one_update(answer: Callable[..., dict], report: Report) -> None:
    """Fresh rows each time, cut unevenly; SGD shows the gradient as what the weights moved by."""
    plain = uneven()
    _right_update(answer, report, "uneven micro-batches", plain)
    empty = [plain[0], plain[1] | {"labels": torch.full_like(plain[1]["labels"], -100)}, *uneven()[:1]]
    _right_update(answer, report, "a micro-batch without a target in the middle", empty)
    _right_update(answer, report, "attention_mask in the batch", masked())
    _right_update(answer, report, "doc_ids in the batch", packed())
    _right_update(answer, report, "a gradient left from before", uneven(), stale=True)
    _right_update(answer, report, "a gradient longer than the limit", uneven(), shorten=random.uniform(0.02, 0.3))
    for what, token in (("the loss is not finite", BAD_FORWARD), ("only the gradient is not", BAD_BACKWARD)):
        first = spoiled(uneven(), token)
        _nothing_moves(answer, report, what, random.choice([first, first[::-1]]))
    _nothing_moves(answer, report, "no target at all", [b | {"labels": b["labels"].clamp(max=-100)} for b in plain])


_KEYS = {"loss", "grad_norm", "skipped"}
_DICT = f"it returns a dict with {', '.join(sorted(_KEYS))}"


def _once(report: Report, what: str, ok: bool, likely: str = "") -> None:
    """As ``report.need``, with one line for what holds again and again."""
    if not ok or what not in (line[1] for line in report.lines):
        report.need(what, ok, likely)


def _right_update(
    answer: Callable[..., dict], report: Report, what: str, batches: list[Batch], *, stale: bool = False, shorten=0.0
) -> None:
    model, rate, given = fresh_model(), random.uniform(0.1, 0.5), copies(batches)
    model.train(not stale)
    modes = [module.training for module in model.modules()]
    first, *others = model.parameters()  # two groups
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": others}], lr=random.uniform(2.0, 9.0))
    before = weights_of(model)
    wanted, loss = gradient_of(before, true_loss, batches), float(true_loss(model_with(before), batches).detach())
    norm = float(wanted.norm())
    limit = norm * shorten if shorten else 1e6
    if stale:
        true_loss(model, uneven()).backward()
    found = answer(model, given, optimizer, rate, limit)
    _once(report, _DICT, isinstance(found, dict) and set(found) >= _KEYS)
    after = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    start = torch.cat([value.double().flatten() for value in before.values()])
    moved = (start - after) / rate
    true = wanted * min(1.0, shorten or 1.0)
    ok = bool(distance(moved, true) < 1e-4)
    likely = "" if ok else behind_update(moved, true, before, batches, optimizer, rate, norm, limit, stale)
    report.need(f"{what}: the weights move by the clipped gradient times lr", ok, likely)
    names = {"loss": loss, "grad_norm": norm}
    for name, true_value in names.items():
        value = found[name]
        ok = isinstance(value, float) and bool(abs(value - true_value) <= 1e-4 * true_value)
        report.need(f"{what}: {name}", ok, "" if ok else behind_number(name, value, true_value, limit))
    report.need(f"{what}: not skipped", found["skipped"] is False, f"skipped is {found['skipped']!r}; False is wanted.")
    _once(report, "the batches are as they were", unchanged(batches, given), "It writes into the batches.")
    same_modes = modes == [module.training for module in model.modules()]
    _once(report, "every module is in the mode it was in", same_modes, "It calls model.train() or model.eval().")


def _nothing_moves(answer: Callable[..., dict], report: Report, what: str, batches: list[Batch]) -> None:
    model = fresh_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=random.uniform(0.01, 0.1), weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        true_loss(model, uneven()).backward()
        optimizer.step()
    before, rates = weights_of(model), [group["lr"] for group in optimizer.param_groups]
    moments = {f"{i} {k}": v.clone() for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
    found = answer(model, copies(batches), optimizer, 0.5, 1.0)
    _once(report, _DICT, isinstance(found, dict) and set(found) >= _KEYS)
    ok = same(before, weights_of(model))
    gone = not math.isfinite(furthest(before, weights_of(model)))
    why = "An update was made with a gradient that is not finite: the weights are NaN." if gone else (
        "The weights have moved: weight decay and old moments move them even where the gradient is 0."
    )  # fmt: skip
    report.need(f"{what}: no weight moves", ok, why)
    now = {f"{i} {k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
    report.need(
        f"{what}: no moment moves", same(moments, now), "step() was called: even at a learning rate of 0 it moves them."
    )
    kept = [group["lr"] for group in optimizer.param_groups] == rates
    why = "The learning rate was set before it was known whether there is an update."
    report.need(f"{what}: no learning rate moves", kept, why)
    report.need(f"{what}: skipped is True", found["skipped"] is True, f"skipped is {found['skipped']!r}.")


def evaluation(model: nn.Module, batches: list[dict]) -> float:
    """Nats per target over a list of batches: the sum of all token losses over the number of all targets.

    The batches are as in the first exercise; a batch without a target may be among them. The model
    computes in eval mode and without gradients. Afterwards every module has its mode again (some may have
    been in eval mode, others not), no generator has moved, and every gradient is as it was.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    total = targets = 0
    with torch.no_grad():
        for batch in batches:
            logits = model(**{name: value for name, value in batch.items() if name != "labels"})
            total += F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum").item()
            targets += int((batch["labels"] != -100).sum())
    for module, training in modes:
        module.training = training
    return total / targets


def check_evaluation(answer: Callable[..., float], report: Report) -> None:
    """Sets of uneven batches, with every combination of modes."""
    for what_else in ("", ", one module in the other mode"):
        plain = uneven()
        empty = [*uneven(), plain[0] | {"labels": torch.full_like(plain[0]["labels"], -100)}]
        sets = {"uneven batches": plain, "one without a target": empty, "a mask": masked(), "doc_ids": packed()}
        for what, batches in sets.items():
            model = fresh_model(dropout=0.4)
            model.train(random.random() < 0.5)
            if what_else:
                model.dropout.train(not model.training)
            _one_evaluation(answer, report, what + what_else, model, batches)


def _one_evaluation(answer: Callable[..., float], report: Report, what: str, model: ProbeModel, batches) -> None:
    for p in model.parameters() if random.random() < 0.5 or what.startswith("a mask") else ():
        p.grad = torch.randn_like(p)  # as after some micro-batches of an update
    gradients = _gradients(model)
    modes, states, given = [m.training for m in model.modules()], generator_states(), copies(batches)
    before, wanted = weights_of(model), float(true_loss(model_with(weights_of(model)), batches).detach())
    value = answer(model, given)
    told = f"It returned {type(value).__name__}; a float is wanted: .item()."
    _once(report, "a float", isinstance(value, float), told)
    moved = [name for name, state in generator_states().items() if state != states[name]]
    ok = bool(abs(value - wanted) <= 1e-5 * wanted)
    report.need(f"{what}: the loss", ok, "" if ok else behind_loss(value, model, batches, bool(moved)))
    _once(report, "no generator moves", not moved, f"{' and '.join(moved)} has moved: nothing is to be drawn.")
    here = [m.training for m in model.modules()]
    left = "It leaves the model in eval mode." if not any(here) and modes[0] else (
        "It puts all modules into one mode; some were in the other: remember the mode of each."
    )  # fmt: skip
    _once(report, "every module has its mode again", here == modes, left)
    now = _gradients(model)
    cause = "It calls backward(), or writes zeros over gradients; looking needs none."
    if len(now) < len(gradients):
        cause = "It clears gradients: those that an update has gathered so far are lost."
    _once(report, "every gradient is as it was", same(gradients, now), cause)
    _once(report, "the weights are as they were", same(before, weights_of(model)), "It moves weights.")
    _once(report, "the batches are as they were", unchanged(batches, given), "It writes into the batches.")


def _gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def snapshot(
    model: nn.Module, optimizer: torch.optim.Optimizer, counts: dict[str, int], saved: dict | None = None
) -> dict:
    """Take the state of a run, or put it back.

    Without ``saved``: return all that the rest of the run depends on, in a dict of your own form. It is
    written to a file by ``torch.save`` at once and must come back by ``torch.load(…, weights_only=True)``.
    The model has dropout; the run draws from torch's generator on the CPU alone.

    With ``saved``, as it came from the file: put it into this model and this optimizer, which a new process has
    just made with settings of its own, so that the run goes on as if it had never stopped, at the
    learning rate of back then. Return the ``counts`` of back then.
    """
    if saved is None:
        weights, moments = model.state_dict(), optimizer.state_dict()
        return {"weights": weights, "moments": moments, "counts": counts, "generator": torch.get_rng_state()}
    model.load_state_dict(saved["weights"])
    optimizer.load_state_dict(saved["moments"])
    torch.set_rng_state(saved["generator"])
    return saved["counts"]


def check_snapshot(answer: Callable[..., dict], report: Report) -> None:
    """A run with dropout and AdamW, stopped at a random update, in two rounds."""
    for again in ("", "from another update: "):
        torch.seed()
        model, made = fresh_model(dropout=0.3), random.randint(2, 5)
        model.read += random.randint(1, 9)
        optimizer, batches = _adamw(model), [uneven() for _ in range(made + 3)]
        for batch in batches[:made]:
            _train(model, optimizer, batch)
        counts = {"step": made, "batch": made + random.randint(0, 9)}
        states, file, then = generator_states(), io.BytesIO(), state_of(model)
        rates = [group["lr"] for group in optimizer.param_groups]
        taken = answer(model, optimizer, dict(counts))
        _once(report, "it returns a dict", isinstance(taken, dict), f"It returned {type(taken).__name__}.")
        torch.save(taken, file)
        calm = generator_states() == states
        report.need(f"{again}taking it moves no generator", calm, "It draws or seeds.")
        path = [_train(model, optimizer, batch) for batch in batches[made:]]
        whole = state_of(model)

        torch.seed()
        other = fresh_model(dropout=0.3)
        resumed = _adamw(other, lr=random.uniform(2e-3, 5e-3))
        saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        found = answer(other, resumed, {"step": 0, "batch": 0}, saved)
        given = isinstance(found, dict) and found == counts
        report.need(f"{again}the counts of back then", given, behind_counts(found))
        at_once, now = state_of(other), [group["lr"] for group in resumed.param_groups] if resumed.state else rates
        road = [_train(other, resumed, batch) for batch in batches[made:]]
        ok = same(whole, state_of(other)) and path == road
        report.need(
            f"{again}it goes on as the run that never stopped, bit for bit",
            ok,
            "" if ok else behind_fork(at_once, then, now, rates, path, road),
        )


def _adamw(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def _train(model: ProbeModel, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> float:
    optimizer.zero_grad()
    loss = true_loss(model, batches)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


EXERCISES = (
    Exercise(
        number=1,
        title="One update",
        goal="Write the heart of a trainer: laws 1, 2 and 6, and clipping, in one function.",
        difficulty="medium",
        minutes=15,
        solution=one_update,
        check=check_one_update,
        hints=(
            'Count the targets of all micro-batches before the first backward(). `reduction="sum"` gives sums.',
            "`clip_grad_norm_` returns the norm before clipping; decide with it and the loss, and only then set "
            "`lr` and call step().",
        ),
    ),
    Exercise(
        number=2,
        title="A look that does not touch",
        goal="Write the evaluation: laws 1 and 8.",
        difficulty="easy",
        minutes=8,
        solution=evaluation,
        check=check_evaluation,
        hints=(
            "Each module has an attribute `training`. `model.train()` would set all of them.",
            "`[(module, module.training) for module in model.modules()]` before, and each put back after.",
        ),
    ),
    Exercise(
        number=3,
        title="A snapshot of a run",
        goal="Write what a checkpoint holds, and how it is put back: law 5.",
        difficulty="medium",
        minutes=10,
        solution=snapshot,
        check=check_snapshot,
        hints=(
            "What would another run have otherwise: weights, moments, counts, and what dropout draws?",
            "`model.state_dict()`, `optimizer.state_dict()` and `torch.get_rng_state()`; the last is put back last.",
        ),
    ),
)
