"""NanHunt: watch one step of a model from inside, and say where finite numbers became others."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from tinytrain.distributed.wrap import is_sharded
from tinytrain.trace import OUTSIDE, Blame, Passage, Phase, Role, Trace, blame, is_bad
from tinytrain.watch.magnitudes import Magnitudes, Tally
from tinytrain.watch.operations import Operation, Operations, operations, own
from tinytrain.watch.table import Table, short
from tinytrain.weights import unwrap

ROAD = 6  # modules that are shown on the road to the first bad place


@dataclass(frozen=True)
class Place:
    """Where finite numbers became others."""

    module: str
    """name of the module; empty if it was not in the model"""
    phase: Phase
    op: str = ""
    """the operation, with ``lines=True``"""
    line: str = ""
    """``file:line: text`` of the source line that asked for it, with ``lines=True``"""


class NanHunt:
    """Watches the forward and backward passes that run inside its ``with`` block, module by module.

    For each module it keeps the largest and smallest magnitude, the share of zeros and of numbers that are not
    finite: of its output, and of the gradient that leaves its input. ``accused`` names the module into which finite
    numbers went and out of which others came, forward or backward; where the code of a module does it between the
    modules that it calls, that module is named. With ``lines=True`` every operation is watched too, and ``first``
    names it with its line of source; that is for the one step that went wrong.

    Scale the loss as the step in question did: ``(loss * scale).backward()``. ``watch(name, tensor)`` adds a tensor
    of the model's own code to the tables. Outside the block nothing is left in the model and nothing costs anything.
    Inside it, forward and backward of a GPT take two to six times as long, with ``lines=True`` six to twenty; more
    where modules are tiny. The
    numbers are read when they are asked for, so that a GPU does not wait (with ``lines=True`` it does).

    Modules with hooks take the plain path where torch has a fused one: ``nn.TransformerEncoder`` in evaluation computes
    otherwise while it is watched, and a NaN of its fast path is not seen.

    Raises ``ValueError`` for a compiled or sharded model, in which hooks do not see what runs.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> with NanHunt(model) as hunt:
    ...     _ = model(torch.tensor([[1.0, math.inf]]))
    >>> hunt.accused, hunt.found
    ('', True)
    """

    def __init__(self, model: nn.Module, *, lines: bool = False) -> None:
        if any("_orig_mod" in module._modules for module in model.modules()):
            raise ValueError("NanHunt looks at Python modules, and this model is compiled: hunt before torch.compile")
        if is_sharded(model):
            raise ValueError("NanHunt needs whole weights, and this model is sharded: hunt in an unsharded copy")
        self.model = unwrap(model)
        code = own if lines else None
        self._trace = Trace(self.model, self._see_apart if lines else self._see, code)
        self._lines, self._stack, self._open = lines, ExitStack(), False
        self._clear()

    def _clear(self) -> None:
        self._seen: list[tuple[Phase, tuple[Role, ...], Tensor]] = []
        self._tallies: dict[Phase, dict[str, Tally]] = {"forward": defaultdict(Tally), "backward": defaultdict(Tally)}
        self._operations: Operations | None = None
        self._passages: list[Passage] | None = None

    def __enter__(self) -> "NanHunt":
        self._clear()
        self._open = True
        self._stack.enter_context(self._trace.watching())
        if self._lines:
            self._operations = self._stack.enter_context(operations(self._trace))
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open = False
        self._stack.close()

    def watch(self, name: str, tensor: Tensor) -> None:
        """Add ``tensor``, and its gradient if it gets one, to the tables as ``name``.

        Outside the block it does nothing, so that a call of it may stay in a model's code.
        """
        if name in set(self._trace.names.values()):
            raise ValueError(f"watch({name!r}, …): a module of the model has this name; choose another")
        if not self._open:
            return
        self._tallies["forward"][name].add(tensor)
        if tensor.requires_grad:
            self._stack.callback(tensor.register_hook(self._tallies["backward"][name].add).remove)

    def _see(self, phase: Phase, roles: Sequence[Role], tensor: Tensor) -> None:
        self._seen.append((phase, tuple(roles), is_bad(tensor, phase)))
        wanted = "output" if phase == "forward" else "input"
        for name in dict.fromkeys(role.module for role in roles if role.side == wanted):
            self._tallies[phase][name].add(tensor)

    def _see_apart(self, phase: Phase, roles: Sequence[Role], tensor: Tensor) -> None:
        with _disable_current_modes():  # what is counted here is no operation of the model
            self._see(phase, roles, tensor)

    @property
    def passages(self) -> list[Passage]:
        """Everything that passed between modules, in order."""
        if self._passages is None or len(self._passages) != len(self._seen):
            flags = torch.stack([flag for *_, flag in self._seen]).tolist() if self._seen else []
            self._passages = [Passage(p, roles, bad) for (p, roles, _), bad in zip(self._seen, flags, strict=True)]
        return self._passages

    @property
    def found(self) -> bool:
        """True if a number that is not finite passed anywhere."""
        return self.first is not None

    @property
    def accused(self) -> str:
        """Name of the module that made numbers that are not finite out of finite ones; empty if none did."""
        return self.first.module if self.first is not None else ""

    @property
    def first(self) -> Place | None:
        """The first such place; None if everything is finite."""
        done = self._operations.found if self._operations is not None else []
        by_module = blame(self.passages)
        if by_module is None:  # operations in modules whose results were finite are mended there, as a mask's are
            return next((_place(made) for made in done if made.module == OUTSIDE), None)
        made = next((made for made in done if made.module == by_module.module), None)
        return _place(made) if made else Place(by_module.module, by_module.phase)

    def modules(self) -> dict[str, dict[Phase, Magnitudes]]:
        """Each module's magnitudes, in the order in which they first ran: ``"forward"`` those of its output,
        ``"backward"`` those of the gradient that leaves its input."""
        names = dict.fromkeys([*self._tallies["forward"], *self._tallies["backward"]])
        return {name: {phase: tallies[name].read() for phase, tallies in self._tallies.items()} for name in names}

    def table(self) -> Table:
        """One row per module: largest and smallest magnitude, share of zeros and of non-finite numbers, both ways."""
        heads = ["module"] + [f"{way} {what}" for way in ("output", "gradient") for what in ("largest", "smallest")]
        heads[3:3] = ["zeros", "not finite"]
        heads += ["zeros", "not finite"]
        rows = [[name, *_cells(both["forward"]), *_cells(both["backward"])] for name, both in self.modules().items()]
        return Table(heads, rows, marked={i for i, (name, *_) in enumerate(rows) if name == self.accused})

    def headroom(self) -> Table:
        """How near each module is to the ends of FP16's range, worst first, forward and backward (which includes the
        loss scale): doublings left until 65,504; shares that are, or in FP16 would be, infinite or 0."""
        rows = []
        for name, both in self.modules().items():
            for phase, size in both.items():
                if size.calls:
                    rows.append((size.headroom, name, phase, size))
        rows.sort(key=lambda row: row[0])
        heads = ["module", "pass", "largest", "doublings left", "infinite or NaN", "would be infinite", "would be 0"]
        cells = [
            [name, phase, short(s.largest), f"{s.headroom:.1f}".replace("-inf", "none"), *_shares(s)]
            for _, name, phase, s in rows
        ]
        return Table(heads, cells, marked={i for i, row in enumerate(rows) if row[0] < 0})

    def road(self) -> list[str]:
        """The modules on the way to the first bad place, in the order of the computation, with what each passed on."""
        found = blame(self.passages)
        return [] if found is None else list(self._road(found))

    def _road(self, found: Blame) -> Iterator[str]:
        side = "output" if found.phase == "forward" else "input"
        names: dict[str, None] = {}
        for passage in self.passages:
            if passage.phase == found.phase:
                if passage.bad:
                    break
                names.update(dict.fromkeys(role.module for role in passage.roles if role.side == side))
        inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
        what = "passes on" if found.phase == "forward" else "hands back a gradient of"
        for name in inner[-ROAD:]:
            size = self._tallies[found.phase][name].read()
            yield f"{name} {what} at most {short(size.largest)} ({size.dtype})"

    def __str__(self) -> str:
        if not self.passages:
            return "Nothing ran inside this hunt's with block."
        found, first = blame(self.passages), self.first
        if found is None:
            worst = min(self._sizes(), default=(math.inf, "", "forward"))
            text = f"Everything that passed between {len(self._trace.names)} modules was finite."
            if math.isfinite(worst[0]):
                text += f" Nearest to FP16's end: {worst[1]}, {worst[2]}, {worst[0]:.1f} doublings left."
            return text + (f"\n{_operation(first)}" if first else "")
        lines = [_verdict(found), *(["  on the way there:"] if self.road() else []), *(f"    {s}" for s in self.road())]
        if first is not None and first.op:
            lines.append(_operation(first))
        if bad := self._bad_gradients():
            lines.append(f"  not finite at the end: the gradients of {len(bad)} weights ({_few(bad)})")
        return "\n".join(lines)

    __repr__ = __str__

    def _sizes(self) -> list[tuple[float, str, str]]:
        return [(size.headroom, name, phase) for name, both in self.modules().items() for phase, size in both.items()]

    def _bad_gradients(self) -> list[str]:
        roles = [passage.roles[0] for passage in self.passages if passage.phase == "backward" and passage.bad]
        return list(dict.fromkeys(str(role) for role in roles if role.side == "weight"))


def _place(made: Operation) -> Place:
    return Place(made.module, made.phase, made.op, made.line)


def _verdict(found: Blame) -> str:
    if found.how == "outside":
        if found.phase == "forward":
            return f"What came into {found.role.module} was not finite: look at the data."
        return f"The gradient that came back to {found.role.module} was not finite: look at the loss and its scale."
    if found.phase == "forward":
        if found.how == "weight":
            return f"{found.module}: its weight {found.role} is not finite, since before this step."
        what = "its output" if found.how == "output" else f"what it hands to {found.role.module}"
        return f"{found.module}, forward: finite numbers came in, and {what} is not finite."
    if found.how == "weight":
        return f"{found.module}, backward: the gradient of its weight {found.role} is not finite."
    if found.how == "between":
        return f"{found.module}, backward: not finite on the way back to {found.role}, in its own code."
    return f"{found.module}, backward: the gradient came in finite and left it not finite."


def _operation(first: Place) -> str:
    where = first.module or "outside the model"
    return f"  the operation: {first.op}, {first.phase}, {where}\n    {first.line}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _cells(size: Magnitudes) -> list[str]:
    if not size.calls:
        return ["", "", "", ""]
    return [short(size.largest), short(size.smallest), _share(size.zeros), _share(size.nonfinite)]


def _shares(size: Magnitudes) -> list[str]:
    return [_share(share) for share in (size.nonfinite, size.too_large, size.too_small)]


def _share(share: float) -> str:
    return "0" if share == 0 else f"{share:.2%}" if share >= 0.0001 else "< 0.01%"
