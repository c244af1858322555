"""The exercises of notebook 02: an update of Adam and AdamW, parameter groups, and the decay that a weight got."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.groups_02 import check_decay_groups, decay_groups

TOLERANCE = 1e-6
DOUBLE = {"dtype": torch.float64}


def adam_step(
    w: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    t: int,
    *,
    lr: float,
    weight_decay: float,
    decoupled: bool,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """Update number ``t`` (the first is 1) of weights ``w``: the new ``(w, m, v)``.

    ``g`` is the gradient; ``m`` and ``v`` are its moments so far, zeros before the first update.
    ``decoupled=True`` is AdamW, ``decoupled=False`` is Adam with L2. All tensors have one shape.
    ``g`` stays as it is; the others may change in place.
    """
    if decoupled:
        w = w - lr * weight_decay * w
    else:
        g = g + weight_decay * w
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return w - lr * m_hat / (v_hat.sqrt() + eps), m, v


def check_adam_step(answer: Callable, report: Report) -> None:
    """Walk with torch for seven updates, with and without decay, with settings that are nobody's defaults."""
    r = torch.rand(5).tolist()
    betas, eps = (0.6 + 0.2 * r[1], 0.85 + 0.08 * r[2]), 10 ** (-7.5 + r[3])
    plain = {"lr": 0.02 + 0.06 * r[0], "betas": betas, "eps": eps, "weight_decay": 0.0}
    start, touched = torch.randn(4, 3, **DOUBLE), []
    sizes = torch.tensor([1.0, 1e-2, 10 * eps], **DOUBLE)  # loud, quiet, and near eps
    gradients = [_away_from_zero(4, 3) * sizes for _ in range(7)]
    g, h = gradients[:2]

    def walk(updates: int, settings: dict, decoupled: bool = True) -> tuple:
        state = (start.clone(), torch.zeros_like(start), torch.zeros_like(start))
        for t, each in enumerate(gradients[:updates], 1):
            given = each.clone()
            state = answer(state[0], given, state[1], state[2], t, decoupled=decoupled, **settings)
            touched.append(not torch.equal(given, each))
        return state

    first, other = walk(1, plain), walk(1, plain, False)
    report.need(
        "returns three tensors of the weights' shape, for AdamW and for Adam with L2",
        _three_like(start, first) and _three_like(start, other),
        "Return the new w, m and v, in this order, whatever decoupled is.",
    )
    report.need(
        "the first update, no decay, equals torch.optim.Adam's",
        _near(first[0], _walk_with_torch(torch.optim.Adam, start, [g], plain)),
        _likely_step(first[0], start, g, plain["lr"], betas, eps),
    )
    m, v = (1 - betas[0]) * g, (1 - betas[1]) * g * g
    moments = [m, v, betas[0] * m + (1 - betas[0]) * h, betas[1] * v + (1 - betas[1]) * h * h]
    report.need(
        "returns the moments m and v of the first two updates",
        all(map(_near, (*first[1:], *walk(2, plain)[1:]), moments)),
        _likely_moments(first[1], first[2], g, m, v),
    )
    report.need(
        "seven updates, no decay, equal torch.optim.Adam's",
        _near(walk(7, plain)[0], _walk_with_torch(torch.optim.Adam, start, gradients, plain)),
        "Later updates are wrong. Both corrections divide by 1 - beta**t, with the t that is passed in.",
    )
    settings = {**plain, "weight_decay": 0.2 + 0.2 * r[4]}
    for decoupled, torchs in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
        got = walk(7, settings, decoupled)[0]
        report.that(
            f"decoupled={decoupled} with decay equals torch.optim.{torchs.__name__}",
            _near(got, _walk_with_torch(torchs, start, gradients, settings)),
            _likely_decay(got, start, gradients, decoupled, settings),
        )
    report.that("leaves g as it was", not any(touched), "g belongs to the caller: write g = g + ..., and not g += ...")


def _away_from_zero(*shape: int) -> Tensor:
    return torch.randn(shape, **DOUBLE).sign() * (0.5 + torch.rand(shape, **DOUBLE))


def _three_like(w: Tensor, got: object) -> bool:
    return isinstance(got, tuple) and len(got) == 3 and all(isinstance(x, Tensor) and x.shape == w.shape for x in got)


def _walk_with_torch(make: type, w: Tensor, gradients: Iterable[Tensor], settings: dict) -> Tensor:
    weight = nn.Parameter(w.clone())
    optimizer = make([weight], **settings)
    for g in gradients:
        weight.grad = g.clone()
        optimizer.step()
    return weight.detach()


def _near(a: object, b: Tensor) -> bool:
    return isinstance(a, Tensor) and a.shape == b.shape and bool(((a - b).abs() <= TOLERANCE).all())


def _likely_step(got: Tensor, w: Tensor, g: Tensor, lr: float, betas: tuple[float, float], eps: float) -> str:
    m, root, small = (1 - betas[0]) * g, g.abs(), g.abs() * (1 - betas[1]) ** 0.5
    if any(_near(got, w - lr * a / (b + eps)) for a, b in ((m, small), (g, small), (m, root))):
        return "The moments start at 0 and are too small at first: divide m by 1 - beta1**t and v by 1 - beta2**t."
    mistakes = {
        "eps stands beside the root, sqrt(v) + eps, and not inside it.": w - lr * g / (g * g + eps).sqrt(),
        "eps comes last: correct v, take the root, then add eps.": w - lr * g / (root + eps / (1 - betas[1]) ** 0.5),
        "eps is passed in, and need not be 1e-8.": w - lr * g / (root + 1e-8),
        "The root is missing: the update is m / (sqrt(v) + eps).": w - lr * g / (g * g + eps),
        "The sign: an update goes against the gradient.": w + lr * g / (root + eps),
        "That is the moment m: return w first, then m, then v.": m,
    }
    otherwise = "On the first update m / (1 - beta1) is g and v / (1 - beta2) is g * g, so a weight moves by about lr."
    return next((hint for hint, value in mistakes.items() if _near(got, value)), otherwise)


def _likely_moments(got_m: Tensor, got_v: Tensor, g: Tensor, m: Tensor, v: Tensor) -> str:
    if _near(got_m, m) and _near(got_v, v):
        return "The old moments go on: the new m is betas[0] times the old m, plus 1 - betas[0] times g; v likewise."
    if _near(got_m, g) or _near(got_v, g * g):
        return "The corrected moments are for the update alone; what is returned as m and v is not divided."
    if _near(got_m, 0.1 * g) or _near(got_v, 0.05 * g * g):
        return "betas are passed in, and need not be 0.9 and 0.95."
    return "m averages g with betas[0], v averages g * g with betas[1], and they are returned in this order: w, m, v."


def _likely_decay(got: Tensor, w: Tensor, gradients: list[Tensor], decoupled: bool, settings: dict) -> str:
    if _near(got, _walk_with_torch(torch.optim.Adam if decoupled else torch.optim.AdamW, w, gradients, settings)):
        return "The other way of decay: L2 adds weight_decay * w to the gradient, AdamW leaves the gradient alone."
    plain = {**settings, "weight_decay": 0.0}
    if _near(got, _walk_with_torch(torch.optim.Adam, w, gradients, plain)):
        return "The decay does nothing here: where does weight_decay * w go?"
    if not decoupled:
        return "L2 adds weight_decay * w to the gradient before both moments see it, without lr."
    last, m, v = w, torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        last, m, v = adam_step(last, g, m, v, t, decoupled=True, **plain)
        last = last * (1 - settings["lr"] * settings["weight_decay"])
    if _near(got, last):
        return "AdamW takes the decay off the weights before the update; you take it off what the update left."
    return "AdamW multiplies the weights by 1 - lr * weight_decay, before the update: both factors, and w alone."


def received_decay(
    train: Callable[[Tensor, list[Tensor], float, float], Tensor],
    weights: Tensor,
    gradients: list[Tensor],
    lr: float,
    weight_decay: float,
) -> Tensor:
    """The decay each weight really got: what decay took of its starting value, per update, over lr.

    ``train(weights, gradients, lr, weight_decay)`` returns the weights after one update for each
    of ``gradients``. It may be any optimizer, so do not look inside: call it. ``weights`` are not
    0 and hardly change on the way. Returns a tensor of their shape; it is ``weight_decay``
    everywhere if the decay arrived as asked. ``weights`` and ``gradients`` stay as they are.
    """
    plain = train(weights, gradients, lr, 0.0)
    decayed = train(weights, gradients, lr, weight_decay)
    return (plain - decayed) / (len(gradients) * lr * weights)


def check_received_decay(answer: Callable, report: Report) -> None:
    """Give it Adam with L2 and no momentum, whose decay is other for each weight, and not linear in anything."""
    r, n = torch.rand(3).tolist(), int(torch.randint(4, 9, ()))
    lr, decay, betas = 1e-5 * (1 + r[0]), 0.03 + 0.05 * r[1], (0.0, 0.8 + 0.15 * r[2])
    weights = _away_from_zero(6).abs() * torch.tensor([1.0, -1.0] * 3, **DOUBLE)
    loudness = torch.logspace(-0.5, 1, 6, **DOUBLE)[torch.randperm(6)]
    gradients = [_away_from_zero(6) * loudness for _ in range(n)]

    def train(w: Tensor, gradients: list[Tensor], lr: float, weight_decay: float) -> Tensor:
        return _walk_with_torch(
            torch.optim.Adam, w, gradients, {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        )

    given = weights.clone(), [g.clone() for g in gradients]
    got, wanted = answer(train, *given, lr, decay), received_decay(train, weights, gradients, lr, decay)
    report.need(
        "returns one number for each weight",
        isinstance(got, Tensor) and got.shape == weights.shape,
        "Return a tensor of the shape of weights.",
    )
    share = torch.rand(6, **DOUBLE) + 0.5  # an optimizer of our own, whose answer is known by how it is made
    known = answer(
        lambda w, given, lr, decay: w * (1 - len(given) * lr * decay * share) - lr * sum(given), *given, lr, decay
    )
    report.that(
        "finds a decay that is known beforehand, within 1%",
        isinstance(known, Tensor) and known.shape == share.shape and _equal(known, decay * share, 1e-2),
        _likely_received(got, train, weights, gradients, lr, decay),
    )
    report.that(
        "finds what Adam with L2 takes from loud and from quiet weights, within 1%",
        _equal(got, wanted, 1e-2),
        _likely_received(got, train, weights, gradients, lr, decay),
    )
    report.that(
        "leaves weights and gradients as they were",
        torch.equal(torch.stack([given[0], *given[1]]), torch.stack([weights, *gradients])),
        "Both runs start from the weights that are passed in: do not change them, nor the gradients.",
    )


def _equal(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return bool(((got - wanted).abs() <= tolerance * wanted.abs() + 1e-9).all())


def _likely_received(got: Tensor, train: Callable, w: Tensor, gradients: list[Tensor], lr: float, decay: float) -> str:
    n, first, none = len(gradients), gradients[:1], [0 * g for g in gradients]
    wanted, moved = received_decay(train, w, gradients, lr, decay), (w - train(w, gradients, lr, decay)) / (n * lr * w)
    of_zeros = (train(0 * w, gradients, lr, 0.0) - train(0 * w, gradients, lr, decay)) / (n * lr * w)
    mistakes = {
        "That is what was asked for. What did arrive? Run it and see.": torch.full_like(w, decay),
        "The gradient's own part of the move is in it. Train a second time without decay and compare.": moved,
        "That is the share of all updates together; divide by their number.": wanted * n,
        "That is the share without its unit; divide by lr.": wanted * lr,
        "That is the share of all updates together, without its unit: divide by their number and lr.": wanted * n * lr,
        "That is how far each weight moved; the share of a weight is wanted, so divide by weights.": wanted * w,
        "The sign: decay takes off, so the plain weights minus the decayed ones.": -wanted,
        "A size does not give the share its sign: divide by weights, not by their size.": wanted * w.sign(),
        "That is which part of what was asked for arrived: do not divide by weight_decay.": wanted / decay,
        "Without gradients it is another run. Pass them to both.": received_decay(train, w, none, lr, decay),
        "That is the first update alone. Pass all gradients.": received_decay(train, w, first, lr, decay),
        "Run it with the weight_decay that is passed in.": received_decay(train, w, gradients, lr, 1.0) * decay,
        "With another lr the weights go another way. Pass lr on.": received_decay(train, w, gradients, 1.0, decay),
        "Decay takes a share of a weight: start from the weights that are passed in.": of_zeros,
    }
    otherwise = "Two runs that differ in weight_decay alone differ by what the decay took off."
    return next((hint for hint, value in mistakes.items() if _equal(got, value, 1e-3)), otherwise)


EXERCISES = (
    Exercise(
        number=1,
        title="One update, two places for the decay",
        goal="Write one update of Adam with L2 and of AdamW. Only the place where the decay enters is different.",
        difficulty="medium",
        minutes=15,
        solution=adam_step,
        check=check_adam_step,
        hints=(
            "With decoupled=True the decay touches w and nothing else; otherwise it touches g, before m and v.",
            "`m = b1 * m + (1 - b1) * g`, and `v` the same with `g * g`. Divide each by `1 - b**t` before you use it, "
            "but return them undivided.",
        ),
    ),
    Exercise(
        number=2,
        title="Who decays",
        goal="Sort a model's parameters into those that decay and those that do not, without trusting their names.",
        difficulty="easy",
        minutes=10,
        solution=decay_groups,
        check=check_decay_groups,
        hints=(
            "`model.parameters()` gives each tensor once, however many names it has.",
            "`p.dim()` is the number of axes: 2 for a matrix, 1 for a bias or a gain. Two or more decay.",
        ),
    ),
    Exercise(
        number=3,
        title="The decay a weight really got",
        goal="Measure it for any optimizer, by two runs that differ in one thing, as above for quiet and loud weights.",
        difficulty="easy",
        minutes=5,
        solution=received_decay,
        check=check_received_decay,
        hints=(
            "Train once with the decay and once with 0, from the same weights on the same gradients.",
            "The difference is what the decay took off in len(gradients) updates. Make it a share of the weight, for "
            "one update, and for a unit of lr.",
        ),
    ),
)
