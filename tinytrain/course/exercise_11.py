"""The exercises of notebook 11: the module at fault, a norm that FP16 cannot break, a mean without the where trap."""

import random
import string
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tinytrain.course.exercises import Exercise, Report


def guilty(model: nn.Module, batch: Tensor) -> str:
    """The name of the child of ``model`` that makes numbers that are not finite out of finite ones,
    in ``model(batch)`` or in the backward pass of ``model(batch).sum()``; "" if none does.

    ``model.named_children()`` has the modules and their names. Each is called once, in any order,
    takes one tensor and returns one; at most one is at fault. ``batch`` is finite and requires a
    gradient. No hook is left in the model.
    """
    faults, handles = [], []

    def watch(name, module):
        def forward(_module, inputs, output):
            if inputs[0].isfinite().all() and not output.isfinite().all():
                faults.append(name)

        def backward(_module, left, came):
            if came[0].isfinite().all() and not left[0].isfinite().all():
                faults.append(name)

        handles.append(module.register_forward_hook(forward))
        handles.append(module.register_full_backward_hook(backward))

    for name, module in model.named_children():
        watch(name, module)
    try:
        model(batch).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    return faults[0] if faults else ""


class _BreaksForward(nn.Module):
    """Its backward pass stays finite."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x == x.max(), self.value)


class _NaNBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + (x * 0).sqrt()


class _InfBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + (x - x.detach()).sqrt()


class _Chain(nn.Module):
    """Children with names drawn at random, called in another order than that in which they were added."""

    def __init__(self, fault: nn.Module | None) -> None:
        super().__init__()
        width, n = random.randint(3, 8), random.randint(5, 8)
        names = set()
        while len(names) < n:
            names.add("".join(random.choices(string.ascii_lowercase, k=5)))
        self.order = random.sample(sorted(names), n)
        added = self.order
        while added == self.order:
            added = random.sample(sorted(names), n)
        at = random.randint(0, n - 1)
        self.culprit = self.order[at] if fault else ""
        kinds = [lambda: nn.Linear(width, width), nn.Tanh, lambda: nn.LayerNorm(width)]
        for name in added:
            self.add_module(name, fault if fault and name == self.culprit else random.choice(kinds)())
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x


def check_guilty(answer: Callable[[nn.Module, Tensor], str], report: Report) -> None:
    """Several fresh models for each kind of fault, and some without one."""
    kinds: list[tuple[str, Callable[[], nn.Module | None]]] = [
        ("a fault in the forward pass, infinite", lambda: _BreaksForward(float("inf"))),
        ("a fault in the forward pass, NaN", lambda: _BreaksForward(float("nan"))),
        ("a fault in the backward pass, infinite", _InfBackward),
        ("a fault in the backward pass, NaN", _NaNBackward),
        ("no fault", lambda: None),
    ]
    for what, fault in kinds:
        for _ in range(4):
            model = _Chain(fault())
            batch = torch.randn(random.randint(2, 5), model.width, dtype=torch.float32, requires_grad=True)
            given = batch.detach().clone()
            name = answer(model, batch)
            report.need(
                f"{what}: a name", isinstance(name, str), f"It returned {type(name).__name__}; a str is wanted."
            )
            right = bool(name == model.culprit)
            report.need(f"{what}: the module at fault", right, "" if right else _likely_guilty(model, name, what))
            kinds_of_hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
            hooks = [m for m in model.modules() for kind in kinds_of_hooks if getattr(m, kind)]
            report.need("no hook is left", not hooks, "Keep what register_… returns, and call remove() at the end.")
            report.need("the batch is as it was", bool(torch.equal(batch.detach(), given)), "It writes into batch.")


def _likely_guilty(model: _Chain, name: str, what: str) -> str:
    if not model.culprit:
        return f"Nothing is at fault in this model, and it accused {name!r}."
    if not name:
        way = "backward" if "backward" in what else "forward"
        kind = "what is infinite" if "infinite" in what else "NaN"
        what = "the one at fault has finite numbers going in and others coming out"
        return f"It accused nobody: watch the {way} pass as well, for {kind} too; {what}."
    if name not in model.order:
        return f"It accused {name!r}, which is no child of the model."
    apart = model.order.index(name) - model.order.index(model.culprit)
    victim = "received bad numbers from" if ("forward" in what) == (apart > 0) else "is no victim of"
    side = "behind" if apart > 0 else "before"
    return (
        f"It accused a module {side} the one at fault, which {victim} it: the one at fault has finite numbers going "
        f"in and others coming out."
    )


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """``gain * x / sqrt(mean(x²) + eps)``, the mean over the last axis of ``x``.

    ``x`` is FP16, of any shape ``[..., D]``, and holds any finite numbers: rows of 0, tiny ones,
    rows near 65,504. ``gain`` is FP32, ``[D]``. The result is FP16. It and the gradients of ``x``
    and ``gain`` are finite where FP16 can hold them, and right to FP16's digits.
    """
    wide = x.float()
    mean_square = wide.square().mean(-1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps) * gain).to(x.dtype)


def check_rms_norm(answer: Callable[[Tensor, Tensor, float], Tensor], report: Report) -> None:
    """Ordinary, tiny, huge and empty rows, compared with float64, forward and backward."""
    eps = random.uniform(2, 9) * 1e-6
    sizes = {
        "ordinary numbers": 1.0,
        "tiny numbers": 2e-5,
        "numbers whose square is near eps": eps**0.5,
        "huge numbers": 12_000.0,
        "rows of 0": 0.0,
    }
    for what, size in sizes.items():
        shape = [random.randint(2, 4) for _ in range(random.randint(1, 2))] + [random.randint(5, 9)]
        data = (_rows(shape) * size).clamp(-65_000, 65_000).half()
        if what == "huge numbers":
            data.view(-1, shape[-1])[0] = 65_504.0 * torch.randn(shape[-1]).sign()
        gain = torch.rand(shape[-1], dtype=torch.float32) + 0.5
        back = torch.randn(shape, dtype=torch.float32).half()
        x, g = data.clone().requires_grad_(), gain.clone().requires_grad_()
        value = answer(x, g, eps)
        is_half = isinstance(value, Tensor) and value.shape == x.shape and value.dtype == torch.float16
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        report.need(f"{what}: FP16, of x's shape", is_half, f"It returned {got}; wanted is float16 {list(x.shape)}.")
        report.need("x is as it was", bool(torch.equal(x.detach(), data)), "It writes into x.")
        wanted, wanted_x, wanted_g = _exact_norm(data, gain, eps, back)
        ok = _near(value.detach(), wanted)
        report.need(f"{what}: the values", ok, "" if ok else _likely_norm(value.detach(), data, gain, eps, what))
        report.need(f"{what}: a graph to x and gain", value.requires_grad, "Its result has no graph: was it detached?")
        value.backward(back)
        for name, found, exact in (("x", x.grad, wanted_x), ("gain", g.grad, wanted_g)):
            there = found is not None
            report.need(f"{what}: gain and x get a gradient", there, f"{name} got none.")
            finite = bool(found.isfinite().all())
            words = "Forward it is fine; the derivative, about 1/rms³, leaves FP16's range. Compute in FP32."
            if what == "huge numbers":
                words = "Forward it is fine; backward a product or a sum leaves FP16's range. Compute in FP32."
            report.need(f"{what}: the gradient of {name} is finite", finite, words)
            words = "The gradient is another one: is a part detached, or rounded to FP16 on the way?"
            report.need(f"{what}: the gradient of {name}", _near(found, exact), words)


def _rows(shape: list[int]) -> Tensor:
    """Random rows of which no two are of one size, and whose means are half of their standard deviation.

    So each mistake gives another value whatever is drawn: the mean squares go from 0.3 to 5.
    """
    rows = torch.randn(shape, dtype=torch.float32)
    rows = (rows - rows.mean(-1, keepdim=True)) / rows.std(-1, correction=0, keepdim=True) + 0.5
    n = rows[..., 0].numel()
    sizes = torch.linspace(0.5, 2, n)[torch.randperm(n)]
    return rows * sizes.view([*shape[:-1], 1])


def _exact_norm(x: Tensor, gain: Tensor, eps: float, back: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, gain = x.double().requires_grad_(), gain.double().requires_grad_()
    value = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    value.backward(back.double())
    return value.detach(), x.grad, gain.grad


def _near(value: Tensor, wanted: Tensor) -> bool:
    limit = 4e-3 * float(wanted.abs().max()) + 1e-6
    return value.shape == wanted.shape and bool((value.double() - wanted).abs().max() <= limit)


def _likely_norm(value: Tensor, x: Tensor, gain: Tensor, eps: float, what: str) -> str:
    if not bool(value.isfinite().all()):
        wrong = "The square overflows" if "huge" in what else "0 · ∞: eps is 0 in FP16"
        return f"{wrong}. Turn x to FP32 first."
    if not bool(value.any()) and bool(x.any()):
        return "It is 0 everywhere: a square over- or underflowed in FP16. Turn x to FP32 before squaring."
    x, gain = x.double(), gain.double()
    m = x.square().mean(-1, keepdim=True)
    candidates = [
        (x / (m + eps).sqrt(), "The gain is missing."),
        (x / m.sqrt() * gain, "eps is missing."),
        (x / (m.sqrt() + eps) * gain, "eps stands outside the root: sqrt(mean + eps)."),
        (x / m.clamp(min=eps).sqrt() * gain, "It uses eps as a floor. Add it to the mean, whatever that is."),
        (x / (x.square().sum(-1, keepdim=True) + eps).sqrt() * gain, "It takes the sum of squares, not the mean."),
        (x / (x.square().mean() + eps).sqrt() * gain, "It takes one mean for all rows: the last axis only."),
        ((x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps).sqrt() * gain, "LayerNorm."),
    ]
    right = x / (m + eps).sqrt() * gain
    for candidate, words in candidates:
        if _near(value, candidate) and not _near(candidate, right):
            return words
    if "huge" in what:
        return "Another value: is something bounded? In FP32 the squares of huge numbers need no limit."
    return "Another value. Tiny numbers lose their digits when they are squared in FP16: turn x to FP32 first."


def mean_log(p: Tensor, keep: Tensor) -> Tensor:
    """The mean of ``log(p)`` over the places where ``keep`` is True; a tensor of shape ``[]``.

    ``p`` and ``keep`` have the same shape. Where ``keep`` is True, ``p`` is above 0, be it as small
    as 1e-20; elsewhere it may be 0 or negative. The gradient of ``p`` is finite, and exactly 0
    where ``keep`` is False. If nothing is kept the result is 0, and ``backward()`` on it works.
    """
    safe = torch.where(keep, p, 1.0)  # what is not kept never meets the logarithm
    return safe.log().sum() / keep.sum().clamp(min=1)


def check_mean_log(answer: Callable[[Tensor, Tensor], Tensor], report: Report) -> None:
    """All kept, some kept with zeros and negatives elsewhere, very small ones kept, none kept."""
    for what in ("all kept", "some kept, 0 elsewhere", "negative numbers elsewhere", "tiny numbers kept", "none kept"):
        shape = [random.randint(3, 6) for _ in range(random.randint(1, 3))]
        data = torch.rand(shape, dtype=torch.float32) + 0.1
        keep = torch.zeros(data.numel(), dtype=torch.bool)
        n = {"all kept": keep.numel(), "none kept": 0}.get(what, random.randint(1, keep.numel() - 1))
        keep[torch.randperm(keep.numel())[:n]] = True
        keep = keep.view(shape)
        if what == "tiny numbers kept":
            data *= 10.0**-19
        data[~keep] = -random.uniform(1, 9) if "negative" in what else 0.0
        p, mask = data.clone().requires_grad_(), keep.clone()
        value = answer(p, mask)
        shaped = isinstance(value, Tensor) and value.shape == ()
        report.need(f"{what}: a tensor of shape []", shaped, f"It returned {type(value).__name__}.")
        unchanged = bool(torch.equal(p.detach(), data)) and bool(torch.equal(mask, keep))
        report.need("p and keep are as they were", unchanged, "It writes into what it was given.")
        exact = data[keep].double().log().mean() if n else torch.zeros((), dtype=torch.float64)
        ok = bool((value.detach().double() - exact).abs() <= 1e-4 * (1 + abs(float(exact))))
        report.need(f"{what}: the mean", ok, "" if ok else _likely_mean(value.detach(), data, keep))
        report.need(f"{what}: it has a graph", value.requires_grad, "backward() on it would raise an error.")
        value.backward()
        gradient = p.grad if p.grad is not None else torch.zeros_like(p)
        words = "The where trap: forward the bad branch is not picked, backward 0 times ∞ is NaN. Mend its input."
        report.need(f"{what}: the gradient is finite", bool(gradient.isfinite().all()), words)
        outside = bool((gradient[~keep] == 0).all())
        report.need(f"{what}: 0 where nothing is kept", outside, "Something that is not kept moves the mean.")
        wanted = torch.where(keep, 1 / data.double(), 0) / max(n, 1)
        close = bool(((gradient.double() - wanted).abs() <= 1e-3 * wanted.abs()).all())
        words = "A clamp has no gradient below its limit, and an eps inside the log changes it: p may be 1e-20."
        report.need(f"{what}: the gradient", close, words)


def _likely_mean(value: Tensor, p: Tensor, keep: Tensor) -> str:
    n = int(keep.sum())
    if bool(value.isnan()):
        return (
            "0 / 0: nothing is kept, and the divisor needs a floor." if not n else "NaN · 0 is NaN: masks do not mend."
        )
    if bool(value.isinf()):
        return "log(0) is −∞ and joins in: pick before the logarithm."
    if n and bool((value - p[keep].log().sum() / p.numel()).abs() <= 1e-3):
        return "It divides by all places; only those kept count."
    return "Another value: an eps or a clamp changes the logarithm of small numbers."


EXERCISES = (
    Exercise(
        number=1,
        title="Find the module at fault",
        goal="Write the core of `NanHunt`: hooks that see what goes into each module and what comes out, in both "
        "directions. A fresh model is broken at random each time you check.",
        difficulty="hard",
        minutes=20,
        solution=guilty,
        check=check_guilty,
        hints=(
            "Each module has `register_forward_hook(f)`, which calls `f(module, inputs, output)`, and "
            "`register_full_backward_hook(b)`, which calls `b(module, left, came)`: the gradients that leave for its "
            "inputs, and those that came to its output, as tuples.",
            "At fault is the one with finite numbers going in and others coming out. Backward, what goes in is "
            "`came[0]`. Make the two hooks in a function that takes the name, or every hook has the last one.",
        ),
    ),
    Exercise(
        number=2,
        title="A norm that FP16 cannot break",
        goal="Write RMSNorm such that neither direction leaves FP16's range, whatever rows come.",
        difficulty="easy",
        minutes=8,
        solution=rms_norm,
        check=check_rms_norm,
        hints=(
            "Three things break in FP16: the square of a large number, eps, and the derivative of the root.",
            "`x.float()` first, everything else in FP32, and back with `.to(x.dtype)` at the very end. Autograd then "
            "goes the same way back.",
        ),
    ),
    Exercise(
        number=3,
        title="A mean without the where trap",
        goal="Write a mean of logarithms over some places that is right in its gradients as well.",
        difficulty="medium",
        minutes=10,
        solution=mean_log,
        check=check_mean_log,
        hints=(
            "What must not happen is that the logarithm sees a 0, even one that is thrown away afterwards.",
            "`torch.where(keep, p, 1.0)` before the logarithm: log 1 is 0 and adds nothing to the sum.",
        ),
    ),
)
