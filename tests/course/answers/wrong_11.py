"""Answers to the exercises of notebook 11: wrong ones with what the report must say, and right ones of another kind."""

import torch
from torch import nn


def watching(*, forward=True, backward=True, blame="first", remove=True, output_only=False, default=""):
    """``guilty`` with parts of it left out or wrong."""

    def guilty(model, batch):
        faults, handles = [], []

        def watch(name, module):
            def ahead(_module, inputs, output):
                if (output_only or inputs[0].isfinite().all()) and not output.isfinite().all():
                    faults.append(name)

            def back(_module, left, came):
                if (output_only or came[0].isfinite().all()) and not left[0].isfinite().all():
                    faults.append(name)

            if forward:
                handles.append(module.register_forward_hook(ahead))
            if backward:
                handles.append(module.register_full_backward_hook(back))

        for name, module in model.named_children():
            watch(name, module)
        model(batch).sum().backward()
        if remove:
            for handle in handles:
                handle.remove()
        return (faults[0] if blame == "first" else faults[-1]) if faults else default

    return guilty


def one_kind_each_way(model, batch):
    """Looks for what is infinite on the way forward and for NaN on the way back."""
    faults, handles = [], []
    for name, module in model.named_children():

        def ahead(_module, inputs, output, name=name):
            if not inputs[0].isinf().any() and output.isinf().any():
                faults.append(name)

        def back(_module, left, came, name=name):
            if not came[0].isnan().any() and left[0].isnan().any():
                faults.append(name)

        handles += [module.register_forward_hook(ahead), module.register_full_backward_hook(back)]
    model(batch).sum().backward()
    for handle in handles:
        handle.remove()
    return faults[0] if faults else ""


def receives(model, batch):
    """Accuses the first module into which bad numbers come."""
    faults, handles = [], []
    for name, module in model.named_children():

        def ahead(_module, inputs, _output, name=name):
            if not inputs[0].isfinite().all():
                faults.append(name)

        def back(_module, _left, came, name=name):
            if not came[0].isfinite().all():
                faults.append(name)

        handles += [module.register_forward_hook(ahead), module.register_full_backward_hook(back)]
    model(batch).sum().backward()
    for handle in handles:
        handle.remove()
    return faults[0] if faults else ""


def late_binding(model, batch):
    """Hooks made in a loop, all of which have the last name."""
    faults, handles = [], []
    for name, module in model.named_children():
        handles.append(
            module.register_forward_hook(
                lambda _m, i, o: faults.append(name) if i[0].isfinite().all() and not o.isfinite().all() else None  # noqa: B023
            )
        )
    model(batch).sum().backward()
    for handle in handles:
        handle.remove()
    return faults[0] if faults else ""


def by_tensor_hooks(model, batch):
    """Right, with hooks on the tensors between the modules for the way back."""
    order, outputs, handles = [], {}, []
    bad = {}
    for name, module in model.named_children():

        def ahead(_module, inputs, output, name=name):
            order.append(name)
            outputs[name] = not output.isfinite().all()
            inputs[0].register_hook(lambda g: bad.__setitem__(name, not bool(g.isfinite().all())))

        handles.append(module.register_forward_hook(ahead))
    model(batch).sum().backward()
    for handle in handles:
        handle.remove()
    for name in order:
        if outputs[name]:
            return name
    return next((name for name in reversed(order) if bad.get(name)), "")


def norm(*, wide=True, eps_inside=True, use_gain=True, axis=-1, back=True, detach=False, total=False, center=False):
    def rms_norm(x, gain, eps):
        y = x.float() if wide else x
        y = y - y.mean(-1, keepdim=True) if center else y
        square = y * y
        m = square.sum(axis, keepdim=True) if total else square.mean(axis, keepdim=True) if axis else square.mean()
        m = m.detach() if detach else m
        y = y * torch.rsqrt(m + eps) if eps_inside else y / (m.sqrt() + eps)
        y = y * (gain if wide else gain.to(y.dtype)) if use_gain else y + 0 * gain.to(y.dtype)
        return y.to(x.dtype) if back else y

    return rms_norm


def scaled_down(x, gain, eps):
    """Divides by the largest number first, in FP32 only where it must."""
    y = x.double()
    return (gain * y / (y.pow(2).mean(-1, keepdim=True) + eps) ** 0.5).half()


WRONG = {
    1: {
        "inf forward and NaN backward only": (one_kind_each_way, "It accused"),
        "forward only": (watching(backward=False), "watch the backward pass as well"),
        "backward only": (watching(forward=False), "accused"),
        "the last that is bad": (watching(blame="last", output_only=True), "a module"),
        "the first with a bad input": (receives, "the one at fault has finite numbers going"),
        "leaves its hooks": (watching(remove=False), "call remove() at the end"),
        "accuses somebody always": (watching(default="head"), "Nothing is at fault in this model"),
        "None if nobody": (watching(default=None), "a str is wanted"),
        "every hook has the last name": (late_binding, "accused"),
    },
    2: {
        "squares bounded": (
            lambda x, g, e: (
                x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True).clamp(max=4e8) + e) * g
            ).half(),
            "is something bounded",
        ),
        "a floor in place of eps": (
            lambda x, g, e: (
                x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True).clamp(min=e)) * g
            ).half(),
            "eps as a floor",
        ),
        "all in FP16": (norm(wide=False), "FP32"),
        "FP32 out": (norm(back=False), "wanted is float16"),
        "no gain": (norm(use_gain=False), "The gain is missing"),
        "eps outside": (norm(eps_inside=False), "eps stands outside the root"),
        "no eps": (lambda x, gain, eps: norm()(x, gain, 0.0), "eps"),
        "the sum": (norm(total=True), "the sum of squares"),
        "one mean for all": (norm(axis=None), "one mean for all rows"),
        "LayerNorm": (norm(center=True), "LayerNorm"),
        "the norm is detached": (norm(detach=True), "is a part detached"),
        "everything detached": (lambda x, gain, eps: norm()(x, gain, eps).detach(), "was it detached"),
    },
    3: {
        "where outside": (
            lambda p, keep: torch.where(keep, p.log(), 0).sum() / keep.sum().clamp(min=1),
            "The where trap",
        ),
        "times the mask": (lambda p, keep: (p.log() * keep).sum() / keep.sum().clamp(min=1), "masks do not mend"),
        "only those kept, no floor": (lambda p, keep: p[keep].log().mean(), "the divisor needs a floor"),
        "a clamp": (
            lambda p, keep: (p.clamp(min=1e-8).log() * keep).sum() / keep.sum().clamp(min=1),
            "an eps or a clamp",
        ),
        "divides by all": (lambda p, keep: torch.where(keep, p, 1.0).log().mean(), "It divides by all places"),
        "a plain zero for none": (
            lambda p, keep: p[keep].log().mean() if keep.any() else torch.tensor(0.0),
            "backward() on it would raise",
        ),
        "nan_to_num": (
            lambda p, keep: torch.where(keep, p.log(), 0).nan_to_num().sum() / keep.sum().clamp(min=1),
            "The where trap",
        ),
    },
}
RIGHT = {
    1: {"hooks on tensors": by_tensor_hooks},
    2: {"in float64": scaled_down, "torch's": lambda x, g, e: nn.functional.rms_norm(x.float(), g.shape, g, e).half()},
    3: {
        "only those kept": lambda p, keep: p[keep].log().sum() / max(int(keep.sum()), 1),
        "masked_fill": lambda p, keep: p.masked_fill(~keep, 1.0).log().sum() / keep.sum().clamp(min=1),
    },
}
