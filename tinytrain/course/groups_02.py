"""The second exercise of notebook 02, which parameters decay: the answer, and what judges it."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tinytrain.course.exercises import Report


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups for ``torch.optim.AdamW``, the first with what decays::

        [{"params": [...], "weight_decay": weight_decay}, {"params": [...], "weight_decay": 0.0}]

    Trainable parameters with two axes or more decay, the others do not. A tied parameter
    stands once, a frozen one (``requires_grad`` is False) not at all. The model stays as it is.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]


MATRICES = ("tokens.weight", "norm_mixer.weight", "filters.weight", "mix_bias", "frozen_no_more.weight")
VECTORS = ("norm_mixer.bias", "last.weight", "last.bias", "filters.bias", "table", "temperature")


class _Odd(nn.Module):
    """A model whose names, kinds and sizes mislead; of ``tokens`` and ``head`` one is the other, ``old`` is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.norm_mixer = nn.Linear(4, 4)
        self.last = nn.LayerNorm(4)
        self.filters = nn.Conv1d(4, 4, 2)  # a weight of three axes
        self.mix_bias = nn.Parameter(torch.randn(2, 2))
        self.table = nn.Parameter(torch.randn(40))  # longer than any matrix
        self.temperature = nn.Parameter(torch.ones(()))  # no axis at all
        self.frozen_no_more = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.tokens.weight
        self.old = nn.Linear(4, 4).requires_grad_(False)


def check_decay_groups(answer: Callable, report: Report) -> None:
    """Ask which group each parameter of a misleading model is in."""
    model, decay = _Odd(), float(torch.rand(()) + 0.1)
    parameters = dict(model.named_parameters())
    before = {name: (p.requires_grad, p.detach().clone()) for name, p in parameters.items()}
    groups = answer(model, decay)
    report.need(
        "returns a list of dicts, each with a list of params and a weight_decay",
        isinstance(groups, list)
        and all(isinstance(group, dict) and {"params", "weight_decay"} <= set(group) for group in groups)
        and all(isinstance(group["weight_decay"], int | float) for group in groups)
        and all(isinstance(x["params"], Iterable) and not isinstance(x["params"], set | Tensor) for x in groups),
        'Each group is {"params": [...], "weight_decay": ...}, with a number, also where it is 0.',
    )
    listed = [(p, float(group["weight_decay"])) for group in groups for p in group["params"]]
    report.need(
        "lists the model's parameters themselves, not names, pairs or copies",
        all(any(p is q for q in parameters.values()) for p, _ in listed),
        "An optimizer wants the model's own tensors: named_parameters() gives pairs of a name and a tensor.",
    )
    got = {name: [value for p, value in listed if p is parameters[name]] for name in parameters}
    report.that(
        "leaves frozen parameters out",
        not got["old.weight"] and not got["old.bias"],
        "A frozen parameter has no business in an optimizer: ask for requires_grad, not for a name.",
    )
    report.that(
        "lists no parameter twice, the tied matrix included",
        all(len(values) <= 1 for values in got.values()),
        "One group, once, for each; the tied matrix has two names and decays twice if listed under both.",
    )
    wrong = {name for name in MATRICES if got[name] != [decay]} | {name for name in VECTORS if got[name] != [0.0]}
    for name in (*MATRICES, *VECTORS):
        what = f"{name}, axes: {parameters[name].dim()}, {'decays' if name in MATRICES else 'does not decay'}"
        report.that(what, name not in wrong, _likely_group(got, wrong))
    report.that(
        "leaves the model as it was",
        all(p.requires_grad == before[name][0] and torch.equal(p, before[name][1]) for name, p in parameters.items()),
        "Sort the parameters, and leave them alone: neither their values nor requires_grad are to change.",
    )


def _likely_group(got: dict[str, list[float]], wrong: set[str]) -> str:
    missing = [name for name in (*MATRICES, *VECTORS) if not got[name]]
    if missing == list(VECTORS):
        return "The vectors are missing: in no group they are never trained. They are the second group."
    if missing:
        return f"Every trainable parameter belongs in one of the groups; missing: {', '.join(missing)}."
    mistakes = {
        (*MATRICES, *VECTORS): "It is turned round: the vectors decay here, and the matrices do not.",
        VECTORS: "Everything decays. Biases and gains, which have one axis, should not.",
        MATRICES: "Nothing decays. The group with the matrices takes the weight_decay that is passed in.",
        ("filters.weight",): "The weight of a convolution has three axes, and decays: two axes or more.",
        ("temperature",): "A single number has no axis, which is fewer than two: it does not decay.",
        ("mix_bias", "table"): "Count axes, not numbers: a vector may be longer than a matrix.",
        ("mix_bias", "filters.weight"): "The kind of layer does not decide, nor whether there is one. Count axes.",
    }
    if hint := next((hint for names, hint in mistakes.items() if wrong == set(names)), ""):
        return hint
    if "tokens.weight" in wrong and wrong < set(MATRICES):
        return "Embeddings are matrices too: whatever has two axes or more decays."
    return "The names mislead: a gain need not be called norm, and what is called norm may be a matrix. Count axes."
