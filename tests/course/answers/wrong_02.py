"""Wrong answers to the exercises of notebook 02, and a part of the hint that each must draw."""

import torch

from tinytrain import param_groups


def step(w, g, m, v, t, *, lr, weight_decay, decoupled, betas=(0.9, 0.95), eps=1e-8, mistake=""):
    if mistake == "swapped":
        decoupled = not decoupled
    if mistake.startswith("always"):
        decoupled = mistake == "always decoupled"
    if mistake == "no decay":
        weight_decay = 0.0
    betas = {"own betas": (0.9, 0.95), "betas swapped": betas[::-1]}.get(mistake, betas)
    lr, eps = 0.1 if mistake == "own lr" else lr, 1e-8 if mistake == "own eps" else eps
    old, plain = (0.0 if mistake == "forgets" else 1.0), g
    if decoupled and mistake == "no lr in the decay":
        w = w * (1 - weight_decay)
    elif decoupled and mistake != "decay last":
        w = w * (1 - lr * weight_decay)
    elif not decoupled:
        g = g + weight_decay * w * (lr if mistake == "lr in L2" else 1)
    if mistake == "changes g":
        plain.copy_(g)
    m = m * betas[0] * old + g * (1 - betas[0])
    v = v * betas[1] * old + (plain if mistake == "L2 in m only" else g).square() * (1 - betas[1])
    first, second = 1 - betas[0] ** t, 1 - betas[1] ** t
    if mistake in ("no bias correction", "only m corrected"):
        first, second = (first if mistake == "only m corrected" else 1), 1
    if mistake == "constant correction":
        first, second = 1 - betas[0], 1 - betas[1]
    if mistake == "eps inside":
        update = m / first / (v / second + eps).sqrt()
    elif mistake == "no root":
        update = m / first / (v / second + eps)
    elif mistake == "eps before correction":
        update = m / first * second**0.5 / (v.sqrt() + eps)
    elif mistake == "sign":
        update = -m / first / ((v / second).sqrt() + eps)
    else:
        update = m / first / ((v / second).sqrt() + eps)
    w = w - lr * update
    if mistake == "divided moments":
        m, v = m / first, v / second
    if mistake in ("w last", "v before m"):
        return (m, v, w) if mistake == "w last" else (w, v, m)
    return (w * (1 - lr * weight_decay) if decoupled and mistake == "decay last" else w), m, v


def with_mistake(mistake):
    return lambda *args, **named: step(*args, **named, mistake=mistake)


def in_place(w, g, m, v, t, *, lr, weight_decay, decoupled, betas=(0.9, 0.95), eps=1e-8):
    if decoupled:
        w.mul_(1 - lr * weight_decay)
    else:
        g = g.add(w, alpha=weight_decay)
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    root = v.sqrt() / (1 - betas[1] ** t) ** 0.5 + eps
    return w.addcdiv_(m, root, value=-lr / (1 - betas[0] ** t)), m, v


def by_name(model, weight_decay):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    vector = [p for n, p in named if "norm" in n or "bias" in n]
    rest = [p for n, p in named if not ("norm" in n or "bias" in n)]
    return [{"params": rest, "weight_decay": weight_decay}, {"params": vector, "weight_decay": 0.0}]


def by_axes(parameters, weight_decay, turned=False, least=2):
    parameters = list(parameters)
    groups = [
        [p for p in parameters if (p.dim() >= least) != turned],
        [p for p in parameters if (p.dim() >= least) == turned],
    ]
    return [{"params": groups[0], "weight_decay": weight_decay}, {"params": groups[1], "weight_decay": 0.0}]


def one_each(model, weight_decay):
    return [{"params": [p], "weight_decay": weight_decay * (p.dim() > 1)} for p in trainable(model)]


def trainable(model, remove_duplicate=True):
    return [p for _, p in model.named_parameters(remove_duplicate=remove_duplicate) if p.requires_grad]


def by_rule(decays):
    """Groups by what ``decays(name, p)`` says of each trainable parameter."""

    def answer(model, weight_decay):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        return [
            {"params": [p for n, p in named if bool(decays(n, p)) is yes], "weight_decay": weight_decay if yes else 0.0}
            for yes in (True, False)
        ]

    return answer


def by_layer(model, weight_decay):
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    weights = [id(module.weight) for module in model.modules() if isinstance(module, kinds)]
    return by_rule(lambda _, p: id(p) in weights)(model, weight_decay)


def frozen_by_name(model, weight_decay):
    return by_axes([p for n, p in model.named_parameters() if not n.startswith("frozen")], weight_decay)


def freezes_vectors(model, weight_decay):
    groups = by_axes(trainable(model), weight_decay)
    for p in groups[1]["params"]:
        p.requires_grad_(False)
    return groups


def copies(model, weight_decay):
    return by_axes([torch.nn.Parameter(p.detach()) for p in trainable(model)], weight_decay)


def only_linear(model, weight_decay):
    layers = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    tied = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    decays = [p for p in layers if p.requires_grad and id(p) not in tied]
    rest = [p for p in trainable(model) if all(p is not q for q in decays)]
    return [{"params": decays, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def pairs(model, weight_decay):
    return [{"params": list(model.named_parameters()), "weight_decay": weight_decay}]


def another_received(train, weights, gradients, lr, weight_decay):
    lost = train(weights, gradients, lr, weight_decay).sub(train(weights, gradients, lr, 0.0)).neg()
    return lost.div(weights).div(lr).div(len(gradients))


def zeros(gradients):
    return [torch.zeros_like(g) for g in gradients]


def changes_weights(train, weights, gradients, lr, weight_decay):
    got = another_received(train, weights, gradients, lr, weight_decay)
    weights.copy_(train(weights, gradients, lr, weight_decay))
    return got


def over_the_end(train, weights, gradients, lr, weight_decay):
    plain = train(weights, gradients, lr, 0.0)
    return (plain - train(weights, gradients, lr, weight_decay)) / (len(gradients) * lr * plain)


def one_minus(train, weights, gradients, lr, weight_decay):
    left = train(weights, gradients, lr, weight_decay) / train(weights, gradients, lr, 0.0)
    return (1 - left) / (len(gradients) * lr)


def by_the_root(train, weights, gradients, lr, weight_decay):
    left = train(weights, gradients, lr, weight_decay) / train(weights, gradients, lr, 0.0)
    return (1 - left ** (1 / len(gradients))) / lr


WRONG = {
    1: {
        "no bias correction": (with_mistake("no bias correction"), "too small at first"),
        "correction of the first update for ever": (with_mistake("constant correction"), "1 - beta**t"),
        "returns the divided moments": (with_mistake("divided moments"), "is not divided"),
        "eps inside the root": (with_mistake("eps inside"), "beside the root"),
        "no root": (with_mistake("no root"), "The root is missing"),
        "L2 and decoupled swapped": (with_mistake("swapped"), "other way of decay"),
        "L2 in both": (with_mistake("always L2"), "other way of decay"),
        "decay without lr": (with_mistake("no lr in the decay"), "1 - lr * weight_decay"),
        "decay after the update": (with_mistake("decay last"), "what the update left"),
        "L2 with lr": (with_mistake("lr in L2"), "without lr"),
        "L2 in m only": (with_mistake("L2 in m only"), "before both moments"),
        "decoupled in both": (with_mistake("always decoupled"), "other way of decay"),
        "no decay": (with_mistake("no decay"), "does nothing here"),
        "only m corrected": (with_mistake("only m corrected"), "too small at first"),
        "eps, and then the correction": (with_mistake("eps before correction"), "eps comes last"),
        "up the gradient": (with_mistake("sign"), "The sign"),
        "betas of its own": (with_mistake("own betas"), "betas are passed in"),
        "betas swapped": (with_mistake("betas swapped"), "m averages g with betas[0]"),
        "eps of its own": (with_mistake("own eps"), "eps is passed in"),
        "lr of its own": (with_mistake("own lr"), "moves by about lr"),
        "forgets the old moments": (with_mistake("forgets"), "The old moments go on"),
        "w last": (with_mistake("w last"), "return w first"),
        "v before m": (with_mistake("v before m"), "in this order: w, m, v"),
        "changes g": (with_mistake("changes g"), "g belongs to the caller"),
        "a list": (lambda *args, **named: list(step(*args, **named)), "Return the new w, m and v"),
    },
    2: {
        "by name": (by_name, "Count axes"),
        "everything decays": (lambda model, decay: by_axes(trainable(model), decay, least=0), "Everything decays"),
        "turned round": (lambda model, decay: by_axes(trainable(model), decay, turned=True), "turned round"),
        "the tied matrix twice": (lambda model, decay: by_axes(trainable(model, False), decay), "decays twice"),
        "frozen ones too": (lambda model, decay: by_axes(model.parameters(), decay), "requires_grad"),
        "no decay for embeddings": (only_linear, "Embeddings are matrices too"),
        "pairs of name and tensor": (pairs, "gives pairs"),
        "copies": (copies, "the model's own tensors"),
        "nothing decays": (lambda model, decay: by_axes(trainable(model), 0.0), "Nothing decays"),
        "no group for the vectors": (lambda model, decay: by_axes(trainable(model), decay)[:1], "vectors are missing"),
        "one decay missing": (lambda model, decay: [{"params": trainable(model)}], "also where it is 0"),
        "whatever is called weight": (by_rule(lambda name, _: name.endswith("weight")), "Count axes"),
        "no bias, no scale": (by_rule(lambda name, _: "bias" not in name and "scale" not in name), "Count axes"),
        "two axes and no more": (by_rule(lambda _, p: p.dim() == 2), "three axes"),
        "a vector has one axis": (by_rule(lambda _, p: p.dim() != 1), "no axis"),
        "by size": (by_rule(lambda _, p: p.numel() >= 5), "Count axes, not numbers"),
        "by kind of layer": (by_layer, "The kind of layer"),
        "frozen by name": (frozen_by_name, "not for a name"),
        "freezes the vectors": (freezes_vectors, "leave them alone"),
        "embedding left out": (
            lambda model, decay: by_axes([p for p in trainable(model) if p.shape != (5, 4)], decay),
            "missing: tokens.weight",
        ),
    },
    3: {
        "what was asked for": (lambda train, w, g, lr, decay: torch.full_like(w, decay), "what was asked for"),
        "the whole move": (
            lambda train, w, g, lr, decay: (w - train(w, g, lr, decay)) / (len(g) * lr * w),
            "without decay and compare",
        ),
        "all updates together": (
            lambda train, w, g, lr, decay: (train(w, g, lr, 0.0) - train(w, g, lr, decay)) / (lr * w),
            "divide by their number",
        ),
        "not per unit of lr": (
            lambda train, w, g, lr, decay: (train(w, g, lr, 0.0) - train(w, g, lr, decay)) / (len(g) * w),
            "divide by lr",
        ),
        "not as a share": (
            lambda train, w, g, lr, decay: (train(w, g, lr, 0.0) - train(w, g, lr, decay)) / (len(g) * lr),
            "the share of a weight",
        ),
        "sign": (
            lambda train, w, g, lr, decay: (train(w, g, lr, decay) - train(w, g, lr, 0.0)) / (len(g) * lr * w),
            "The sign",
        ),
        "neither by number nor by lr": (lambda *given: another_received(*given) * given[3] * len(given[2]), "and lr"),
        "by the size of the weight": (lambda *given: another_received(*given) * given[1].sign(), "not by their size"),
        "part of what was asked": (lambda *given: another_received(*given) / given[4], "by weight_decay"),
        "no gradients without decay": (
            lambda train, w, g, lr, decay: (train(w, zeros(g), lr, 0.0) - train(w, g, lr, decay)) / (len(g) * lr * w),
            "without decay and compare",
        ),
        "no gradients at all": (
            lambda train, w, g, lr, decay: another_received(train, w, zeros(g), lr, decay),
            "Without gradients",
        ),
        "the first gradient only": (
            lambda train, w, g, lr, decay: another_received(train, w, g[:1], lr, decay),
            "first update alone",
        ),
        "a decay of 1, scaled": (
            lambda train, w, g, lr, decay: another_received(train, w, g, lr, 1.0) * decay,
            "Run it with the weight_decay",
        ),
        "an lr of 1": (
            lambda train, w, g, lr, decay: another_received(train, w, g, 1.0, decay),
            "With another lr",
        ),
        "from zeros": (
            lambda train, w, g, lr, decay: (train(0 * w, g, lr, 0.0) - train(0 * w, g, lr, decay)) / (len(g) * lr * w),
            "start from the weights",
        ),
        "changes the weights": (changes_weights, "do not change them"),
    },
}


RIGHT = {
    1: {"written with another order of operations": with_mistake(""), "in place, as in the notebook": in_place},
    2: {"the package's own": param_groups, "one group for each": one_each},
    3: {
        "step by step": another_received,
        "as a share of the end": over_the_end,
        "one minus what is left": one_minus,
        "by the root": by_the_root,
    },
}
