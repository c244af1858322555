"""What a hunt has found, in words."""

from collections.abc import Mapping, Sequence

from tinytrain.blame import Blame, Passage
from tinytrain.watch.magnitudes import Magnitudes
from tinytrain.watch.origins import Operation
from tinytrain.watch.table import short


def sentence(found: Blame) -> str:
    """Who made numbers that are not finite, and how that is known."""
    if found.how == "left over":
        return "Gradients were not finite before this backward pass: an earlier one has left them."
    if found.how == "kept":
        what = "buffer" if found.role.buffer else "weight"
        return f"{found.module}: its {what} {found.role} is not finite, since before this step."
    return _forward(found) if found.phase == "forward" else _backward(found)


def _forward(found: Blame) -> str:
    if found.how == "outside":
        return f"What came into {found.role.module} was not finite: look at the data."
    if found.how == "weight":
        return f"{found.module}: its weight {found.role} is not finite, since before this step."
    what = "its output" if found.how == "output" else f"what it hands to {found.role.module}"
    return f"{found.module}, forward: finite numbers came in, and {what} is not finite."


def _backward(found: Blame) -> str:
    if found.how == "outside" and found.role.side == "weight":
        return (
            f"The gradient of {found.role} is not finite, and no module handed on one that was not: look at the loss, "
            "if it reads this weight itself."
        )
    if found.how == "outside":
        return f"The gradient that came back to {found.role.module} was not finite: look at the loss and its scale."
    if found.how == "weight":
        whose = "its weight" if found.role.module == found.module else "the weight"
        return f"{found.module}, backward: the gradient of {whose} {found.role} is not finite."
    if found.how == "between":
        to = f" on the way back to {found.role}" if found.role.module != found.module else ""
        return f"{found.module}, backward: not finite{to}, in its own code."
    return f"{found.module}, backward: the gradient came in finite and left it not finite."


def operation(made: Operation, found: Blame | None) -> list[str]:
    """The operation, where it is, and the line that asked for it, if that is known."""
    where = made.module or (found.module if found is not None else "") or "outside the model"
    derivative = f" in {made.derivative}" if made.derivative else ""
    lines = [f"  the operation: {made.op}{derivative}, {made.phase}, {where}", *_indented(made.line)]
    if made.out_of is not None:
        lines += [f"  of the minus infinity made by {made.out_of.op}:", *_indented(made.out_of.line)]
    return lines


def _indented(line: str) -> list[str]:
    return [f"    {line}"] if line else []  # none is known of what was made before the block began


def notes(passages: Sequence[Passage], found: Blame | None) -> list[str]:
    """What else was not finite: gradients at the end, and what was bad before the step began."""
    bad = [passage for passage in passages if passage.bad]
    at_end = [role for p in bad for role in p.roles[:1] if p.phase == "backward" and role.side == "weight"]
    lines = []
    if names := _names(at_end):
        lines.append(f"  not finite at the end: the gradients of {len(names)} weights ({_few(names)})")
    if names := _names([p.roles[0] for p in bad if p.roles[0].side == "left over"]):
        lines.append(
            f"  not finite before: the gradients of {len(names)} weights ({_few(names)}); zero_grad clears them"
        )
    kept = [p.roles[0] for p in bad if p.roles[0].side == "kept"]
    if found is None and (names := _names(kept)):
        lines.append(f"  not finite, and nothing that ran was spoilt by it: {_few(names)}")
    return lines


def limits(counts: Mapping[tuple[str, str], int], found: Blame | None, *, twice: bool) -> list[str]:
    """What could not be looked at, and what is not certain."""
    reasons: dict[str, list[str]] = {}
    for module, why in counts:
        reasons.setdefault(why, []).append(module)
    total = {why: sum(n for (_, w), n in counts.items() if w == why) for why in reasons}
    lines = [f"  could not look at {total[why]} tensors {why}, of {_few(names)}" for why, names in reasons.items()]
    if twice and found is not None and found.phase == "backward":
        lines.append("  a guess: gradients were derived once more (create_graph=True), and that is not told apart")
    return lines


def cells(size: Magnitudes) -> list[str]:
    """Of a row of the table: largest, smallest, share of zeros and of what is not finite."""
    if not size.calls:
        return ["", "", "", ""]
    return [short(size.largest), short(size.smallest), _share(size.zeros), _share(size.nonfinite)]


def shares(size: Magnitudes) -> list[str]:
    """Of a row of the headroom: what is not finite, and what FP16 would make infinite or 0."""
    return [_share(share) for share in (size.nonfinite, size.too_large, size.too_small)]


def _share(share: float) -> str:
    return "0" if share == 0 else f"{share:.2%}" if share >= 0.0001 else "< 0.01%"


def _names(roles: Sequence[object]) -> list[str]:
    return list(dict.fromkeys(str(role) for role in roles))


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
