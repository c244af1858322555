"""Answers to the exercises of notebook 06: wrong ones with what they must be told, and other right ones."""

import numpy as np
import torch
import torch.nn.functional as F

from tinytrain import cross_entropy


def targets_of(batch):
    return int((batch["labels"] != -100).sum())


def added(divisor, *, tensor=False, zero=False):
    """Accumulation that divides the summed loss of each micro-batch by ``divisor(batch, all of them)``."""

    def answer(model, micro_batches):
        total = 0.0
        if zero:
            model.zero_grad()
        for batch in micro_batches:
            losses = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
            part = losses / divisor(batch, micro_batches)
            part.backward()
            total += part.detach() if tensor else part.item()
        return total

    return answer


def all_targets(_batch, batches):
    return sum(map(targets_of, batches))


def torchs_means(model, micro_batches):
    """NaN as soon as a micro-batch has no target; with targets in all, the mean of means."""
    total = 0.0
    for batch in micro_batches:
        logits = model(batch["input_ids"]).transpose(1, 2)
        share = targets_of(batch) / sum(map(targets_of, micro_batches))
        part = F.cross_entropy(logits, batch["labels"]) * share
        part.backward()
        total += part.item()
    return total


def all_at_once(model, micro_batches):
    losses = [cross_entropy(model(b["input_ids"]), b["labels"], reduction="sum") for b in micro_batches]
    loss = sum(losses) / sum(map(targets_of, micro_batches))
    loss.backward()
    return loss.item()


def joined_to_one(model, micro_batches):
    """One large batch, padded: what the micro-batches were there to avoid."""
    T = max(b["labels"].shape[1] for b in micro_batches)
    ids = torch.cat([F.pad(b["input_ids"], (0, T - b["input_ids"].shape[1])) for b in micro_batches])
    labels = torch.cat([F.pad(b["labels"], (0, T - b["labels"].shape[1]), value=-100) for b in micro_batches])
    loss = cross_entropy(model(ids), labels)
    loss.backward()
    return loss.item()


def right_loss_only(model, micro_batches):
    total = 0.0
    for batch in micro_batches:
        losses = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
        cross_entropy(model(batch["input_ids"]), batch["labels"]).backward()
        total += losses.item() / sum(map(targets_of, micro_batches))
    return total


def weighted_means(model, micro_batches):
    everything = sum(map(targets_of, micro_batches))
    total = 0.0
    for batch in micro_batches:
        if share := targets_of(batch) / everything:
            part = share * F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
            part.backward()
            total += part.item()
    return total


def adds_to_grad_itself(model, micro_batches):
    """Needs a ``.grad`` that is there already."""
    total, parameters = 0.0, list(model.parameters())
    for batch in micro_batches:
        part = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
        part = part / all_targets(batch, micro_batches)
        for p, gradient in zip(parameters, torch.autograd.grad(part, parameters), strict=True):
            p.grad += gradient
        total += part.item()
    return total


def updates_too(model, micro_batches):
    total = added(all_targets)(model, micro_batches)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return total


def clamps_labels_in_place(model, micro_batches):
    total = added(all_targets)(model, micro_batches)
    for batch in micro_batches:
        batch["labels"].clamp_(min=0)
    return total


def in_numpy(model, micro_batches):
    return np.float64(added(all_targets)(model, micro_batches))


def updates(sums, per_update):
    return [slice(i, i + per_update) for i in range(0, len(sums), per_update)]


def means(sums, counts):
    return [s / n for s, n in zip(sums, counts, strict=True)]


def drops_the_tail(sums, counts, per_update):
    return [
        sum(sums[i : i + per_update]) / sum(counts[i : i + per_update])
        for i in range(0, len(sums) - per_update + 1, per_update)
    ]


def divides_by_the_full_number(sums, counts, per_update):
    return [sum(means(sums, counts)[w]) / per_update for w in updates(sums, per_update)]


def mean_of_means(sums, counts, per_update):
    return [sum(part) / len(part) for part in (means(sums, counts)[w] for w in updates(sums, per_update))]


def every_micro_batch(sums, counts, per_update):
    return means(sums, counts)


def joins_the_tail(sums, counts, per_update):
    whole = max(1, len(sums) // per_update)
    ends = [per_update * (i + 1) for i in range(whole - 1)] + [len(sums)]
    starts = [0, *ends[:-1]]
    return [sum(sums[a:b]) / sum(counts[a:b]) for a, b in zip(starts, ends, strict=True)]


def never_zeroed(sums, counts, per_update):
    return [sum(sums[: w.stop]) / sum(counts[: w.stop]) for w in updates(sums, per_update)]


def full_count_at_the_end(sums, counts, per_update):
    right = [sum(sums[w]) / sum(counts[w]) for w in updates(sums, per_update)]
    left = len(sums) % per_update or per_update
    return [*right[:-1], right[-1] * left / per_update]


def partial_first(sums, counts, per_update):
    left = len(sums) % per_update
    starts = ([0] if left else []) + list(range(left, len(sums), per_update))
    ends = [*starts[1:], len(sums)]
    return [sum(sums[a:b]) / sum(counts[a:b]) for a, b in zip(starts, ends, strict=True)]


def eats_its_lists(sums, counts, per_update):
    losses = []
    while sums:
        losses.append(sum(sums[:per_update]) / sum(counts[:per_update]))
        del sums[:per_update], counts[:per_update]
    return losses


def in_float32(sums, counts, per_update):
    pieces = zip(torch.tensor(sums).split(per_update), torch.tensor(counts).split(per_update), strict=True)
    return [(a.sum() / b.sum()).item() for a, b in pieces]


def numpy_floats(sums, counts, per_update):
    return [np.sum(sums[w]) / np.sum(counts[w]) for w in updates(sums, per_update)]


def loop_with_a_flag(sums, counts, per_update):
    losses, total, targets = [], 0.0, 0
    for i, (own, n) in enumerate(zip(sums, counts, strict=True), 1):
        total, targets = total + own, targets + n
        if i % per_update == 0 or i == len(sums):
            losses.append(total / targets)
            total, targets = 0.0, 0
    return losses


def flat(model):
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def tester(*, mode="eval", uneven=True, size=2, zero=True, agree=None):
    """A test of accumulation with one thing done wrong."""

    def answer(accumulate, model):
        model.train(mode == "train")
        ids = torch.randint(0, 256, (4, 13))
        whole = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].clone()}
        if uneven:
            whole["labels"][:2, 3:] = -100
        model.zero_grad()
        loss = cross_entropy(model(whole["input_ids"]), whole["labels"])
        loss.backward()
        wanted = flat(model)
        if zero:
            model.zero_grad()
        value = accumulate(model, [{k: t[i : i + size] for k, t in whole.items()} for i in range(0, 4, size)])
        return bool((agree or near)(flat(model), wanted, value, loss.item()))

    return answer


def near(found, wanted, _value, _loss):
    return (found - wanted).norm() <= 1e-5 * wanted.norm()


def same_loss(_found, _wanted, value, loss):
    return abs(value - loss) < 1e-5


def same_direction(found, wanted, _value, _loss):
    return torch.nn.functional.cosine_similarity(found, wanted, dim=0) > 0.99999


def same_length(found, wanted, _value, _loss):
    return abs(found.norm() - wanted.norm()) <= 1e-5 * wanted.norm()


def same_length_and_loss(found, wanted, value, loss):
    return same_length(found, wanted, value, loss) and abs(value - loss) < 1e-5


def kindly(found, wanted, _value, _loss):
    return (found - wanted).norm() <= 0.05 * wanted.norm()


def same_part(part):
    def agree(found, wanted, _value, _loss):
        return (found[part] - wanted[part]).norm() <= 1e-5 * wanted[part].norm()

    return agree


def identical(found, wanted, _value, _loss):
    return torch.equal(found, wanted)


WRONG = {
    1: {
        "mean of means": (added(lambda b, all_: max(1, targets_of(b)) * len(all_)), "mean of the micro-batches' means"),
        "undivided means": (added(lambda b, _: max(1, targets_of(b))), "never divided"),
        "undivided sums": (added(lambda *_: 1), "The summed losses were never divided"),
        "counts padding": (added(lambda _, all_: sum(b["labels"].numel() for b in all_)), "no targets"),
        "by rows": (added(lambda _, all_: sum(len(b["labels"]) for b in all_)), "It divides by rows"),
        "sums by micro-batches": (added(lambda _, all_: len(all_)), "the number of micro-batches"),
        "0/0 for an empty one": (torchs_means, "0/0"),
        "forgets what was there": (added(all_targets, zero=True), "are gone"),
        "holds all activations": (all_at_once, "without the memory"),
        "joins them to one": (joined_to_one, "without the memory"),
        "logs another loss than it trains on": (right_loss_only, "The loss is right and the gradient is not"),
        "adds to .grad itself": (adds_to_grad_itself, "may be None"),
        "updates too": (updates_too, "It changed the weights"),
        "clamps labels in place": (clamps_labels_in_place, "belongs to the caller"),
        "a tensor": (added(all_targets, tensor=True), "It returned Tensor"),
    },
    2: {
        "drops the tail": (drops_the_tail, "never trained on"),
        "the tail by the full count": (full_count_at_the_end, "Only the last update is wrong"),
        "the mean of means, by the full number": (divides_by_the_full_number, "mean of the micro-batches' means"),
        "the mean of means": (mean_of_means, "mean of the micro-batches' means"),
        "an update per micro-batch": (every_micro_batch, "one update for each micro-batch"),
        "joins the tail to the update before": (joins_the_tail, "joined the update before"),
        "never zeroes": (never_zeroed, "as `zero_grad` does"),
        "eats its lists": (eats_its_lists, "belongs to the caller"),
        "tensors in the list": (lambda s, c, w: [torch.tensor(x) for x in means(s, c)], "It returned list of Tensor"),
        "the short update first": (partial_first, "begin at the first micro-batch"),
    },
    3: {
        "equal counts only": (tester(uneven=False), "the same number of targets"),
        "dropout on": (tester(mode="train"), "Dropout was on"),
        "compares losses": (tester(agree=same_loss), "and not the loss"),
        "compares directions": (tester(agree=same_direction), "its direction"),
        "compares lengths": (tester(agree=same_length), "its length"),
        "compares lengths and losses": (tester(agree=same_length_and_loss), "its length"),
        "allows for a lot": (tester(agree=kindly), "allow for rounding only"),
        "compares the first parameter": (tester(agree=same_part(slice(4096))), "or one parameter"),
        "compares the last parameter": (tester(agree=same_part(slice(-16, None))), "or one parameter"),
        "allows for no rounding": (tester(agree=identical), "allow for rounding"),
        "one micro-batch": (tester(size=4), "nothing to add up"),
        "does not zero": (tester(zero=False), "Was an earlier gradient still in"),
        "trusts everybody": (lambda accumulate, model: True, "never called"),
        "trusts nobody": (lambda accumulate, model: False, "never called"),
    },
}
RIGHT = {
    1: {"weighted means": weighted_means, "the same sum": added(all_targets), "a NumPy float": in_numpy},
    2: {"a loop with a flag": loop_with_a_flag, "in float32": in_float32, "NumPy floats": numpy_floats},
    3: {"row by row": tester(size=1), "in double": tester()},
}
