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
    """Every trainable weight in the optimizer once; matrices decay, vectors do not."""
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
            decay[p] = max(decay.get(p, 0.0), group.get("weight_decay", 0.0))
    faults = {
        "missing": [n for p, n in names.items() if p.requires_grad and p not in count],
        "twice": [names.get(p, "a stranger") for p, k in count.items() if k > 1],
        "not the model's": [f"[{', '.join(map(str, p.shape))}]" for p in count if p not in names],
        "frozen, and yet in the optimizer": [n for p, n in names.items() if not p.requires_grad and p in count],
        "decayed with one axis": [n for p, n in names.items() if p.dim() < 2 and decay.get(p)],
    }
    if any(decay.values()):
        tables = {m.weight for m in subject.model.modules() if isinstance(m, nn.Embedding)}
        plain = [p for p in names if p.requires_grad and p.dim() >= 2 and decay.get(p) == 0.0]
        faults["not decayed with two axes"] = [names[p] for p in plain if p not in tables]
    said = "; ".join(f"{kind}: {listed(found)}" for kind, found in faults.items() if found)
    kinds = f"{sum(map(bool, decay.values()))} tensors decay, {sum(not d for d in decay.values())} do not"
    cure = "Build it with tinytrain.optimizer.build_adamw, after the last change to the model's parameters."
    return Line(name, not said, said or f"every trainable weight once; {kinds}", cure)
