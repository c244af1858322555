"""Law 7, clipping and decay: an update's types, its length, and what shrinks in it."""

import torch

from tinytrain.course.laws.bench import IGNORED, Bench, Run
from tinytrain.course.laws.common import CLOSE, NOT_FLOAT32, in_float32, no_update
from tinytrain.course.laws.line import Line, holds_if, untested
from tinytrain.course.laws.probe import distance, gradient_of, ordinary, true_loss


def float32(bench: Bench) -> list[Line]:
    """Weights and moments, in every precision that the trainer takes."""
    lines = []
    for precision in bench.precisions:
        run = bench.run(total_steps=3, precision=precision)
        if run.ended or not run.moved or not run.tape.updates:
            lines.append(no_update(run))
            continue
        weights = {str(p.dtype) for p in run.model.parameters()}
        states = [state for u in run.tape.updates for o in u.optimizers for state in o.state.values()]
        moments = {str(v.dtype) for state in states for v in state.values() if torch.is_tensor(v) and v.dim() > 0}
        ok = weights | moments <= {"torch.float32", "torch.float64"}
        number = f"{precision}: weights {', '.join(sorted(weights))}; moments {', '.join(sorted(moments)) or 'none'}"
        why = "the model is cast: keep weights in float32 and let autocast cast what it computes"
        lines.append(holds_if(ok, number, why))
    if bench.no_fp16 == IGNORED:
        return [*lines, holds_if(False, f"fp16: {IGNORED}", "compute the logits under torch.autocast, or refuse it")]
    return lines if len(bench.precisions) > 1 else [*lines, untested(f"fp16: {bench.no_fp16}")]


def clipping(bench: Bench) -> list[Line]:
    """The 2-norm of the whole gradient is bounded in every update, and its direction is kept."""
    lines = []
    for precision in bench.precisions:
        free = bench.run(total_steps=3, precision=precision)
        if free.ended or not free.tape.updates or not float(free.tape.updates[0].gradient.norm()) > 0:
            lines.append(no_update(free))
            continue
        if not in_float32(free):
            return [NOT_FLOAT32]
        if max(_turned(free, n) for n in range(len(free.tape.updates))) > CLOSE[precision]:
            lines.append(untested(f"{precision}: the unclipped gradient is not the true one, of which law 1 tells"))
            continue
        limit = 0.05 * float(_true(free, 0).norm())  # no update here has a gradient as short as that
        run = bench.run(total_steps=3, max_grad_norm=limit, precision=precision)
        if run.ended or not run.tape.updates:
            lines.append(no_update(run))
            continue
        lengths = [float(update.gradient.norm()) / limit for update in run.tape.updates]
        n = max(range(len(lengths)), key=lambda n: abs(lengths[n] - 1))
        off = max(_turned(run, n) for n in range(len(lengths)))
        number = (
            f"{precision}, in three updates: the clipped gradient of update {n + 1} is {lengths[n]:.3g} times the "
            f"limit long, and a direction is off by {off:.1e}"
        )
        ok = abs(lengths[n] - 1) < 1e-3 and off <= 2 * CLOSE[precision]
        lines.append(holds_if(ok, number, _likely_clip(lengths[n], limit, float(_true(run, n).norm()))))
    if len(bench.precisions) == 1:
        lines.append(untested(f"fp16: {bench.no_fp16}"))
    return lines


def _true(run: Run, n: int) -> torch.Tensor:
    return gradient_of(run.tape.updates[n].before, true_loss, ordinary(n))


def _turned(run: Run, n: int) -> float:
    """How far the direction of update ``n``'s gradient is off the true one."""
    found, true = run.tape.updates[n].gradient, _true(run, n)
    return distance(found / found.norm().clamp(min=1e-30), true / true.norm())


def _likely_clip(length: float, limit: float, free: float) -> str:
    if abs(length * limit / free - 1) < 2e-2:
        return "it is not clipped before step(): clip_grad_norm_ comes between backward() and step(), in every update"
    if length < 0.01:
        return "it was clipped while still multiplied by the loss scale: scaler.unscale_(optimizer) comes first"
    return "each tensor, or each number, is clipped by itself: clip_grad_norm_ takes all parameters together"


def decay(bench: Bench) -> list[Line]:
    """Only matrices decay, and every trained weight is in one group."""
    run = bench.run(total_steps=3)
    if run.ended or not run.tape.updates:
        return [no_update(run)]
    names = {id(p): name for name, p in run.model.named_parameters()}
    groups = [(p, g.get("weight_decay", 0)) for g in run.tape.updates[0].groups for p in g["params"]]
    if left := sorted(set(names) - {id(p) for p, _ in groups}):
        return [holds_if(False, f"in no group, so never trained: {', '.join(names[i] for i in left)}")]
    wrong = [names[id(p)] for p, share in groups if share and p.dim() < 2 and id(p) in names]
    if not any(share for _, share in groups):
        return [untested("nothing decays")]
    why = "one group for all parameters: put what has one dimension into a group with weight_decay=0"
    return [holds_if(not wrong, f"norms and biases that decay: {', '.join(wrong) or 'none'}", why)]
