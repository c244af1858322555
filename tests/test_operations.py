from contextlib import nullcontext

import torch
from hunted_models import RmsNorm16, hunted, squeezed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tinytrain.watch.nan_hunt import NanHunt


def test_a_derivative_that_overflows_in_fp16_is_named_with_its_forward_line():
    model = squeezed(nn.Sequential(RmsNorm16()))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.02)
    assert hunted(model).accused == "blocks.1.feed_forward_norm.0"
    first = hunted(model, lines=True).first
    assert (first.module, first.phase, first.op) == ("blocks.1.feed_forward_norm.0", "backward", "pow")
    assert "inverse = torch.rsqrt(" in first.line


def test_a_change_of_type_is_named_as_it_is_written():
    class Half(nn.Module):
        def forward(self, x):
            return x.half()

    for step in (Half(), nn.Linear(2, 2)):
        with NanHunt(step, lines=True) as hunt, torch.autocast("cpu", torch.float16):
            step(torch.full((1, 2), 1e5))
        assert hunt.first.op == "to(float16)"


def test_the_line_of_a_custom_function_and_its_derivatives_name_are_told():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient / (gradient - gradient)

    class Model(nn.Module):
        def forward(self, x):
            return Twice.apply(x)

    layers = nn.Sequential(nn.Linear(2, 2), Model())
    with NanHunt(layers, lines=True) as hunt:
        layers(torch.ones(1, 2)).sum().backward()
    assert hunt.accused == "1" and "return Twice.apply(x)" in hunt.first.line
    assert "the operation: div in TwiceBackward, backward, 1" in str(hunt)


def test_the_hunt_itself_is_no_operation():
    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.seen += 1
            return func(*args, **(kwargs or {}))

    layer, counts = nn.Linear(2, 2), []
    for watching in (nullcontext(), NanHunt(layer), NanHunt(layer, lines=True)):
        layer.zero_grad()
        Count.seen = 0
        with Count(), watching:
            layer(torch.ones(1, 2)).sum().backward()
        counts.append(Count.seen)
    assert counts[0] == counts[1] == counts[2] > 0
