"""Who turned finite numbers into ones that are not, told from what passed between modules."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from tinytrain.tensors import Phase
from tinytrain.trace import BEFORE, OUTSIDE, Role


@dataclass(frozen=True)
class Passage:
    """One tensor that passed, and whether it was bad, as ``is_bad`` says."""

    phase: Phase
    roles: tuple[Role, ...]
    bad: bool


@dataclass(frozen=True)
class Blame:
    """Where finite numbers became others."""

    module: str
    """the module's name; ``OUTSIDE`` if it was neither the model nor one of its parts"""
    phase: Phase
    role: Role
    """of the first bad tensor"""
    how: Literal["output", "weight", "kept", "between", "outside", "left over"]
    """its own output; its own weight (backward: the gradient of one); a weight or buffer that it keeps and that was
    bad at the start; its own code, between the modules that it calls; outside the model; not in these passes at all:
    an earlier backward has left it"""


def blame(passages: Sequence[Passage]) -> Blame | None:
    """Which module turned finite numbers into ones that are not; None if all are finite."""
    bad = [passage for passage in passages if passage.bad]
    first = next((passage for passage in bad if passage.roles[0].side not in BEFORE), None)
    if first is None:
        left = (passage.roles[0] for passage in bad if passage.roles[0].side == "left over")
        return next((Blame(OUTSIDE, "backward", role, "left over") for role in left), None)
    if first.phase == "backward":
        return _backward(first.roles)
    kept = [passage.roles[0] for passage in bad if passage.roles[0].side == "kept"]
    ran = {passage.roles[0].module for passage in passages if passage.roles[0].side in ("input", "output", "weight")}
    return _forward(first.roles[0], kept, ran)


def blamed(passages: Sequence[Passage], found: Blame) -> int:
    """The number of the passage for which there is this blame."""
    return next(n for n, passage in enumerate(passages) if passage.bad and found.role in passage.roles)


def _forward(role: Role, kept: Sequence[Role], ran: Collection[str]) -> Blame:
    if role.side == "weight":
        return Blame(role.module, "forward", role, "weight")
    module = role.caller if role.side == "input" else role.module
    if module == OUTSIDE:
        return Blame(module, "forward", role, "outside")
    for each in kept:  # a buffer of its own, or a weight that it reads of a module that it never calls
        if each.module == module or (module in each.within and each.module not in ran):
            return Blame(each.module, "forward", each, "kept")
    return Blame(module, "forward", role, "between" if role.side == "input" else "output")


def _backward(roles: Sequence[Role]) -> Blame:
    """The first bad gradient was handed on by the code of a module: into that it came finite. Or it is the sum of what
    was handed on, and all that modules handed on was finite: then the loss has added to it, or it is out of scale."""
    first, *rest = roles
    if first.side == "handed":
        to = rest[0] if rest else None
        if to is None:
            return Blame(first.module, "backward", first, "output")
        return Blame(first.module, "backward", to, "weight" if to.side == "weight" else "between")
    weights = [role for role in roles if role.side == "weight"]
    if weights and weights[0].hooked:
        return Blame(weights[0].module, "backward", weights[0], "weight")
    if weights:
        return Blame(OUTSIDE, "backward", weights[0], "outside")
    came = next((role for role in roles if role.side == "output"), first)
    read = next((role for role in roles if role.side == "read"), None)
    if read is not None:
        return Blame(read.module, "backward", came, "between")
    last = [role for role in roles if role.side == came.side][-1 if came.side == "output" else 0]
    if last.again and last.caller != OUTSIDE:  # nobody has claimed what a checkpoint computes between its modules
        return Blame(last.caller, "backward", came, "between")
    return Blame(OUTSIDE, "backward", came, "outside")
