"""Answers to the exercises of notebook 14: wrong ones with what the report must say, and right ones of another kind."""

import math

import torch
import torch.nn.functional as F


def given(batch, *, mask=True):
    return {name: value for name, value in batch.items() if name == "input_ids" or (mask and name != "labels")}


def updating(
    *, divide="targets", zero=True, clip=True, after=False, look=("loss", "norm", "targets"), early_rate=False,
    set_rate=True, mask=True, shift=False, log="all", item=True,
):  # fmt: skip
    """The solution with a part of it left out or wrong."""

    def one_update(model, micro_batches, optimizer, rate, limit):
        if zero:
            optimizer.zero_grad()
        targets = sum(int((b["labels"] != -100).sum()) for b in micro_batches)
        positions = sum(b["labels"].numel() for b in micro_batches)
        loss = 0.0
        for batch in micro_batches:
            labels = batch["labels"]
            if shift:
                labels = F.pad(labels[:, 1:], (0, 1), value=-100)
            part = F.cross_entropy(model(**given(batch, mask=mask)).flatten(0, 1), labels.flatten(), reduction="sum")
            here = int((batch["labels"] != -100).sum())
            divisor = {
                "targets": max(targets, 1), "positions": positions, "means": max(here, 1) * len(micro_batches),
                "own": max(here, 1), "raw means": here * len(micro_batches), "nothing": 1,
            }[divide]  # fmt: skip
            (part / divisor).backward()
            loss = part.item() / max(here, 1) if log == "last" else loss + part.item() / max(targets, 1)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit if clip else math.inf)
        if after:
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        if set_rate and early_rate:
            for group in optimizer.param_groups:
                group["lr"] = rate
        bad = {"loss": not math.isfinite(loss), "norm": not math.isfinite(norm.item()), "targets": targets == 0}
        skipped = any(bad[each] for each in look)
        if not skipped:
            if set_rate:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            optimizer.step()
        return {"loss": loss, "grad_norm": norm.item() if item else norm, "skipped": skipped}

    return one_update


def zeroes_bad_gradients(model, micro_batches, optimizer, rate, limit):
    """In place of a skipped update one with a gradient of 0."""
    old = optimizer.step
    report = updating()(model, micro_batches, optimizer, rate, limit)
    if report["skipped"]:
        optimizer.zero_grad(set_to_none=False)
        old()
    return report


def in_one_backward(model, micro_batches, optimizer, rate, limit):
    """All losses in one list, one division, one backward()."""
    model.zero_grad()
    losses, labels = [], []
    for batch in micro_batches:
        chances = torch.log_softmax(model(**given(batch)), -1)
        real = batch["labels"] >= 0
        losses.append(-chances[real].gather(1, batch["labels"][real][:, None])[:, 0])
        labels.append(batch["labels"][real])
    losses = torch.cat(losses)
    if len(losses) == 0:
        return {"loss": 0.0, "grad_norm": 0.0, "skipped": True}
    loss = losses.mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    if not (loss.isfinite() and norm.isfinite()):
        return {"loss": loss.item(), "grad_norm": float(norm), "skipped": True}
    for p in model.parameters():
        p.grad *= min(1.0, limit / float(norm))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return {"loss": float(loss.detach()), "grad_norm": float(norm), "skipped": False}


def evaluating(*, modes="each", off=True, mean="sum", mask=True, item=True, draw=False):
    """The solution with a part of it left out or wrong."""

    def evaluation(model, batches):
        before = [(m, m.training) for m in model.modules()]
        whole = model.training
        if off:
            model.eval()
        if draw:
            batches = [batches[i] for i in torch.randperm(len(batches))]
        total, targets, positions, means = 0.0, 0, 0, []
        with torch.no_grad():
            for batch in batches:
                logits, labels = model(**given(batch, mask=mask)).flatten(0, 1), batch["labels"].flatten()
                part = F.cross_entropy(logits, labels, reduction="sum").item()
                here = int((labels != -100).sum())
                total, targets, positions = total + part, targets + here, positions + labels.numel()
                means.append(F.cross_entropy(logits, labels).item() if mean == "torch" else part / max(here, 1))
        if modes == "each":
            for module, training in before:
                module.training = training
        elif modes == "one":
            model.train(whole)
        elif modes == "train":
            model.train()
        value = {"sum": total / targets, "positions": total / positions}.get(mean, sum(means) / len(means))
        return value if item else torch.tensor(value)

    return evaluation


def by_total(model, batches):
    """Modes by name, the targets in one tensor."""
    modes = {name: module.training for name, module in model.named_modules()}
    try:
        with torch.inference_mode():
            model.eval()
            parts = [
                torch.stack([F.cross_entropy(model(**given(b)).flatten(0, 1), b["labels"].flatten(), reduction="sum"),
                             (b["labels"] != -100).sum()])
                for b in batches
            ]  # fmt: skip
            losses, targets = torch.stack(parts).double().sum(0).tolist()
    finally:
        for name, module in model.named_modules():
            module.training = modes[name]
    return losses / targets


def keeping(*, weights=True, moments=True, counts=True, generator="state", first=False):
    """The solution with a part of it left out or wrong."""

    def snapshot(model, optimizer, counted, saved=None):
        if saved is None:
            drawn = torch.get_rng_state() if generator == "state" else torch.initial_seed()
            return {"weights": model.state_dict(), "moments": optimizer.state_dict(), "counts": counted, "drawn": drawn}
        if generator == "seed":
            torch.manual_seed(saved["drawn"])
        elif generator == "state":
            torch.set_rng_state(saved["drawn"])
        if first:
            torch.nn.Linear(3, 3)
        if weights:
            model.load_state_dict(saved["weights"])
        if moments:
            optimizer.load_state_dict(saved["moments"])
        return saved["counts"] if counts else counted

    return snapshot


def in_a_list(model, optimizer, counts, saved=None):
    """Tensors in a list, and the moments tensor by tensor."""
    if saved is None:
        moments = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in model.parameters()]
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        return {"all": weights, "m": moments, "c": tuple(counts.items()), "g": torch.random.get_rng_state()}
    with torch.no_grad():
        for (name, p), state in zip(model.named_parameters(), saved["m"], strict=True):
            p.copy_(saved["all"][name])
            optimizer.state[p] = state
    torch.random.set_rng_state(saved["g"])
    return dict(saved["c"])


WRONG = {
    1: {
        "averages the means": (updating(divide="means"), "averages the means of the micro-batches"),
        "adds up the means": (updating(divide="own"), "without dividing by all targets"),
        "sums": (updating(divide="nothing"), "summed and not divided"),
        "padding in the divisor": (updating(divide="positions"), "it divides by positions"),
        "shifts once more": (updating(shift=True), "shifted once more"),
        "keeps the old gradient": (updating(zero=False), "call zero_grad() first"),
        "does not clip": (updating(clip=False), "not clipped before step()"),
        "norm after clipping": (updating(after=True), "the norm after clipping"),
        "does not set the rate": (updating(set_rate=False), "write it into every group"),
        "loses the mask": (updating(mask=False), "Attention_mask does not reach the model"),
        "looks at nothing": (updating(look=("targets",)), "gradient that is not finite"),
        "looks at the loss only": (updating(look=("loss", "targets")), "gradient that is not finite"),
        "takes no targets for an update": (updating(look=("loss", "norm")), "weight decay and old moments"),
        "sets the rate too early": (updating(early_rate=True), "before it was known"),
        "an update of zeros": (zeroes_bad_gradients, "weight decay and old moments"),
        "logs the last one": (updating(log="last"), "times what was optimized"),
        "a tensor for the norm": (updating(item=False), "a float is wanted"),
    },
    2: {
        "averages the means": (evaluating(mean="means"), "averages the means of batches"),
        "torch's mean of a batch": (evaluating(mean="torch"), "averages the means of batches"),
        "padding in the divisor": (evaluating(mean="positions"), "Padding counts in the divisor"),
        "stays in eval mode": (evaluating(modes="none"), "mode"),
        "always trains on": (evaluating(modes="train"), "some were in the other"),
        "one mode for all": (evaluating(modes="one"), "some were in the other"),
        "shuffles": (evaluating(draw=True), "nothing is to be drawn"),
        "loses the mask": (evaluating(mask=False), "Sum the token losses"),
        "a tensor": (evaluating(item=False), "a float is wanted"),
    },
    3: {
        "without weights": (keeping(weights=False), "The weights are not those"),
        "without moments": (keeping(moments=False), "moments are missing"),
        "without counts": (keeping(counts=False), "the counts belong to what is saved"),
        "without the generator": (keeping(generator=""), "dropout draws other numbers"),
        "the seed": (keeping(generator="seed"), "A seed is not a state"),
        "something draws after it": (keeping(first=True), "dropout draws other numbers"),
    },
}

RIGHT = {
    1: {"in one backward()": in_one_backward},
    2: {"modes by name": by_total},
    3: {"in a list": in_a_list},
}
