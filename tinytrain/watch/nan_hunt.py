"""NanHunt: watch one step of a model from inside, and say where finite numbers became others."""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from tinytrain.blame import Blame, Passage, blame, blamed
from tinytrain.distributed.wrap import is_sharded
from tinytrain.tensors import Phase, is_bad, readable
from tinytrain.trace import BEFORE, Role, Trace
from tinytrain.watch import verdict
from tinytrain.watch.magnitudes import Counted, Magnitudes, settle, together
from tinytrain.watch.operations import Operations, operations
from tinytrain.watch.origins import Operation
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


@dataclass(frozen=True)
class Seen:
    """One tensor that passed."""

    phase: Phase
    roles: tuple[Role, ...]
    counted: Counted | None
    """if it stands in a table"""
    bad: Tensor | None
    """if it does not"""
    origin: Operation | None


class NanHunt:
    """Watches the forward and backward passes that run inside its ``with`` block, module by module.

    For each module it keeps the largest and smallest magnitude, the share of zeros and of numbers that are not
    finite: of its output, and of the gradient of its input. ``accused`` names the module into which finite
    numbers went and out of which others came, forward or backward; where the code of a module does it between the
    modules that it calls, that module is named. With ``lines=True`` every operation is watched too, and ``first``
    names it with its line of source; that is for the one step that went wrong.

    Scale the loss as the step in question did: ``(loss * scale).backward()``. ``watch(name, tensor)`` adds a tensor
    of the model's own code to the tables. Outside the block nothing is left in the model and nothing costs anything.
    Inside it, on a CPU, forward and backward of a GPT take up to twice as long, with ``lines=True`` up to three times;
    more where modules are tiny. The numbers are read when they are asked for, so that a GPU does not wait (with
    ``lines=True`` it does).

    What it cannot look at it says: nested tensors, tensors without data, and those inside ``torch.func``; and that a
    derivative of a derivative was taken (``create_graph=True``), where it guesses who spoilt it. It does not see what a
    module hands on in an iterator, or within an object that is no container, dataclass or namespace; and a loss that
    is not finite although every gradient is, only with ``lines=True``.
    Modules with hooks take the plain path where torch has a fused one: ``nn.TransformerEncoder`` in evaluation computes
    otherwise while it is watched, and a NaN of its fast path is not seen.

    Raises ``ValueError`` for a compiled, scripted or sharded model, in which hooks do not see what runs.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> with NanHunt(model) as hunt:
    ...     _ = model(torch.tensor([[1.0, math.inf]]))
    >>> hunt.accused, hunt.found
    ('', True)
    """

    def __init__(self, model: nn.Module, *, lines: bool = False) -> None:
        if any("_orig_mod" in module._modules or module._compiled_call_impl for module in model.modules()):
            raise ValueError("NanHunt looks at Python modules, and this model is compiled: hunt before torch.compile")
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise ValueError("NanHunt looks at Python modules, and this model is scripted: hunt before torch.jit")
        if is_sharded(model):
            raise ValueError("NanHunt needs whole weights, and this model is sharded: hunt in an unsharded copy")
        self.model = unwrap(model)
        self._trace = Trace(self.model, self._see)
        self._lines, self._stack, self._open = lines, ExitStack(), False
        self._clear()

    def _clear(self) -> None:
        self._seen: list[Seen] = []
        self._counted: dict[Phase, dict[str, list[Counted]]] = {way: defaultdict(list) for way in get_args(Phase)}
        self._operations: Operations | None = None
        self._passages: list[Passage] = []

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
        self._add(name, "forward", tensor)
        if tensor.requires_grad:
            hook = tensor.register_hook(lambda gradient: self._add(name, "backward", gradient))
            self._stack.callback(hook.remove)

    def _add(self, name: str, phase: Phase, tensor: Tensor) -> None:
        with self._trace.apart():
            numbers = readable(tensor if tensor.is_floating_point() or tensor.is_complex() else tensor.double())
            if not isinstance(numbers, str):
                self._counted[phase][name].append(Counted(numbers))

    def _see(self, phase: Phase, roles: Sequence[Role], tensor: Tensor) -> None:
        wanted = "output" if phase == "forward" else "input"
        names = () if roles[0].side == "handed" else dict.fromkeys(r.module for r in roles if r.side == wanted)
        counted = Counted(tensor) if names else None
        bad = is_bad(tensor, phase, buffer=roles[0].buffer) if counted is None else None
        origin = self._operations.origin(tensor) if self._operations is not None else None
        self._seen.append(Seen(phase, tuple(roles), counted, bad, origin))
        for name in names:
            if counted is not None:
                self._counted[phase][name].append(counted)

    @property
    def passages(self) -> list[Passage]:
        """Everything that passed between modules, in order."""
        new = self._seen[len(self._passages) :]
        settle([seen.counted for seen in new if seen.counted is not None])
        flags = [seen.bad for seen in new if seen.bad is not None]
        told = iter(torch.stack([flag.to(flags[0].device) for flag in flags]).tolist() if flags else [])
        for seen in new:
            bad = next(told) if seen.counted is None else seen.counted.bad(seen.phase)
            self._passages.append(Passage(seen.phase, seen.roles, bad))
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
        found = blame(self.passages)
        made = self._made(found)
        at = found or made  # operations in modules whose results were finite are mended there, as a mask's are
        return at and Place(at.module, at.phase, *((made.op, made.line) if made is not None else ()))

    def _made(self, found: Blame | None) -> Operation | None:
        """The operation from which the first bad tensor comes, or else one outside the model whose result stays bad."""
        if self._operations is None:
            return None
        left = self._operations.left_over()
        if found is None or (found.how == "outside" and found.phase == "backward" and left is not None):
            return left
        return self._seen[blamed(self.passages, found)].origin

    def modules(self) -> dict[str, dict[Phase, Magnitudes]]:
        """Each module's magnitudes, in the order in which they first ran: ``"forward"`` those of its output,
        ``"backward"`` those of the gradient of its input."""
        names = dict.fromkeys([*self._counted["forward"], *self._counted["backward"]])
        return {name: {phase: together(each.get(name, [])) for phase, each in self._counted.items()} for name in names}

    def table(self) -> Table:
        """One row per module: largest and smallest magnitude, share of zeros and of non-finite numbers, both ways."""
        heads = ["module"] + [f"{way} {what}" for way in ("output", "gradient") for what in ("largest", "smallest")]
        heads[3:3] = ["zeros", "not finite"]
        heads += ["zeros", "not finite"]
        rows = [
            [name, *verdict.cells(both["forward"]), *verdict.cells(both["backward"])]
            for name, both in self.modules().items()
        ]
        return Table(heads, rows, marked={i for i, (name, *_) in enumerate(rows) if name == self.accused})

    def headroom(self) -> Table:
        """How near each module is to the ends of FP16's range, worst first, forward and backward (which includes the
        loss scale): doublings left until 65,504; shares that are, or in FP16 would be, infinite or 0."""
        rows = sorted(self._sizes(), key=lambda row: row[0])
        heads = ["module", "pass", "largest", "doublings left", "infinite or NaN", "would be infinite", "would be 0"]
        cells = [
            [name, phase, short(s.largest), f"{s.headroom:.1f}".replace("-inf", "none"), *verdict.shares(s)]
            for _, name, phase, s in rows
        ]
        return Table(heads, cells, marked={i for i, row in enumerate(rows) if row[0] < 0})

    def _sizes(self) -> list[tuple[float, str, Phase, Magnitudes]]:
        every = [(name, phase, size) for name, both in self.modules().items() for phase, size in both.items()]
        return [(size.headroom, name, phase, size) for name, phase, size in every if size.calls]

    def road(self) -> list[str]:
        """The modules on the way to the first bad place, in the order of the computation, with what each passed on."""
        found = blame(self.passages)
        if found is None or found.how == "left over":
            return []
        side = "output" if found.phase == "forward" else "input"
        passed: dict[str, list[Counted]] = {}
        for seen, passage in zip(self._seen, self.passages, strict=True):
            if passage.phase == found.phase and passage.roles[0].side not in BEFORE:
                if passage.bad:
                    break
                for name in {r.module: None for r in passage.roles if r.side == side and r.run == found.role.run}:
                    if seen.counted is not None:
                        passed.setdefault(name, []).append(seen.counted)
        inner = [name for name in passed if not any(other.startswith(f"{name}.") for other in passed)]
        what = "passes on" if found.phase == "forward" else "hands back a gradient of"
        sizes = [(name, together(passed[name])) for name in inner[-ROAD:]]
        return [f"{name} {what} at most {short(size.largest)} ({size.dtype})" for name, size in sizes]

    def __str__(self) -> str:
        if not any(passage.roles[0].side != "kept" for passage in self.passages) and not self._trace.unseen:
            return "Nothing ran inside this hunt's with block."
        found = blame(self.passages)
        made, lines = self._made(found), []
        if found is None:
            worst = min(self._sizes(), default=(math.inf, "", "forward", Magnitudes()), key=lambda row: row[:3])
            lines.append(f"Everything that passed between {len(self._trace.names)} modules was finite.")
            if math.isfinite(worst[0]):
                lines[0] += f" Nearest to FP16's end: {worst[1]}, {worst[2]}, {worst[0]:.1f} doublings left."
        else:
            road = self.road()
            lines += [verdict.sentence(found), *(["  on the way there:"] if road else []), *(f"    {s}" for s in road)]
        if made is not None:
            lines += verdict.operation(made, found)
        lines += verdict.notes(self.passages, found)
        return "\n".join([*lines, *verdict.limits(self._trace.unseen, found, twice=self._trace.twice)])

    __repr__ = __str__
