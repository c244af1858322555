"""Which weights are one, and which decay."""

from collections import Counter

import torch
from torch import Tensor, nn

from tinytrain.optimizer import param_groups
from tinytrain.watch.preflight.report import Line, listed
from tinytrain.watch.preflight.subject import NotTestedError, Subject


def tied_line(subject: Subject) -> Line:
    """The embedding and the head: one tensor, or two on purpose."""
    name, model = "tied weights", subject.model
    config_says = getattr(getattr(model, "config", None), "tie_word_embeddings", None)
    tables = {n: m.weight for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    heads = {n: m.weight for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    tables, heads = ({n: w for n, w in d.items() if w.shape[0] == subject.vocab_size} for d in (tables, heads))
    pairs = [(t, h) for h in heads for t in tables if heads[h].shape == tables[t].shape]
    if not pairs:
        raise NotTestedError(f"no embedding and linear head of one shape [{subject.vocab_size}, D] were found")
    for table, head in pairs:
        E, H = tables[table], heads[head]
        both, size = f"{table}.weight and {head}.weight", f"{E.numel():,} numbers"
        if E is H:
            return Line(name, True, f"{both} are one tensor of {size}")
        if E.data_ptr() == H.data_ptr() or (E.any() and torch.equal(E, H)):
            how = "share memory" if E.data_ptr() == H.data_ptr() else "have equal values"
            cure = f"Tie the parameter itself: {head}.weight = {table}.weight. As two, each gets half of the gradient."
            return Line(name, False, f"{both} {how} and are two parameters: untied by accident?", cure)
    if config_says:
        cure = "Call the model's tie_weights(), or say tie_word_embeddings=False."
        return Line(name, False, f"the config says tie_word_embeddings, and {both} are two tensors", cure)
    return Line(name, True, f"{both} are separate, {size} each")


def groups_line(subject: Subject) -> Line:
    """Every trainable weight in the optimizer once; matrices decay, vectors do not; and its updates go downhill."""
    name, names = "decay groups", {p: n for n, p in subject.model.named_parameters()}
    if subject.optimizer is None:
        groups = param_groups(subject.model, 0.1) if any(p.requires_grad for p in names) else []
        split = {bool(g["weight_decay"]): len(g["params"]) for g in groups}
        would = f"param_groups would decay {split.get(True, 0)} tensors and leave {split.get(False, 0)}"
        raise NotTestedError(f"no optimizer was given; {would}")
    decay: dict[Tensor, float] = {}
    count: Counter[Tensor] = Counter()
    for group in subject.optimizer.param_groups:
        for p in group["params"]:
            count[p] += 1
            decay[p] = max(decay.get(p, 0.0), float(group.get("weight_decay", 0.0)))
    cure = "Build it with tinytrain.optimizer.build_adamw, after the last change to the model's parameters."
    if not any(p in names for p in count):
        return Line(name, False, "none of the model's weights is in it: it was made for another model or copy", cure)
    faults = {
        "missing": [n for p, n in names.items() if p.requires_grad and p not in count],
        "twice": [names.get(p, "a stranger") for p, k in count.items() if k > 1],
        "not the model's": [f"[{', '.join(map(str, p.shape))}]" for p in count if p not in names],
        "frozen, and yet in the optimizer": [n for p, n in names.items() if not p.requires_grad and p in count],
        "decayed with one axis": [n for p, n in names.items() if p.dim() < 2 and decay.get(p)],
        "updates": _faults_of_updates(subject.optimizer),
    }
    note = ""
    if any(decay.values()):
        tables = {m.weight for m in subject.model.modules() if isinstance(m, nn.Embedding)}
        plain = {p: n for p, n in names.items() if p.requires_grad and p.dim() >= 2 and decay.get(p) == 0.0}
        plain_names = [n for p, n in plain.items() if p not in tables]
        # A matrix of a layer is called weight; a table of positions that is a bare parameter may well be left alone.
        faults["not decayed with two axes"] = [n for n in plain_names if n.rpartition(".")[2] == "weight"]
        if bare := [n for n in plain_names if n.rpartition(".")[2] != "weight"]:
            note = f"; not decayed: {listed(bare)}"
    said = "; ".join(f"{kind}: {listed(found)}" for kind, found in faults.items() if found)
    kinds = f"{sum(map(bool, decay.values()))} tensors decay, {sum(not d for d in decay.values())} do not"
    return Line(name, not said, (said or f"every trainable weight once; {kinds}") + note, cure)


ADAPTIVE = ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")  # divide by a size of gradients


def _faults_of_updates(optimizer: torch.optim.Optimizer) -> list[str]:
    """What is wrong with how its steps go, whatever the weights are."""
    groups, found = optimizer.param_groups, []
    if any(group.get("maximize") for group in groups):
        found.append("maximize=True climbs the loss")
    rates = [max(float(group["lr"]), float(group.get("initial_lr", 0.0))) for group in groups if "lr" in group]
    if rates and not any(rates):  # a schedule that warms up leaves lr 0, and notes initial_lr
        found.append("lr is 0 in every group and no schedule is attached, so nothing moves")
    kind = next((k.__name__ for k in type(optimizer).__mro__ if k.__name__ in (*ADAPTIVE, "AdamW")), "")
    for group in groups:
        decay = float(group.get("weight_decay", 0.0))
        decoupled = kind == "AdamW" or group.get("decoupled_weight_decay", False)
        if decay and not decoupled and kind in ADAPTIVE:
            found.append(
                f"weight_decay {decay:g} is added to the gradient, and {kind} divides it by the gradient's size: use "
                "AdamW, which takes lr * weight_decay off each weight"
            )
            break
    shares = [float(g["lr"]) * float(g.get("weight_decay", 0.0)) for g in groups if "lr" in g and kind == "AdamW"]
    if shares and max(shares) >= 1:
        found.append(f"lr * weight_decay is {max(shares):g}: one update takes all of a weight away")
    return found
