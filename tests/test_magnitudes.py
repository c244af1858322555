import math

import pytest
import torch

from tinytrain.tensors import is_bad
from tinytrain.watch import magnitudes
from tinytrain.watch.magnitudes import Counted, Magnitudes, settle, together


def test_magnitudes_on_paper():
    first = Counted(torch.tensor([0.0, -2.0, 70000.0, math.inf]))
    size = together([first, Counted(torch.tensor([2.0**-25, 1.0, 65519.0, math.nan]))])
    assert (size.largest, size.smallest, size.calls, size.dtype) == (70000.0, 2.0**-25, 2, "float32")
    assert (size.zeros, size.nonfinite, size.too_large, size.too_small) == (1 / 8, 2 / 8, 1 / 8, 1 / 8)
    assert size.headroom == -math.inf and Magnitudes().headroom == math.inf == together([]).headroom
    assert Magnitudes(largest=70000.0).headroom == pytest.approx(math.log2(65504 / 70000))


def test_magnitudes_of_finite_numbers_on_paper():
    size = together([Counted(torch.tensor([0.0, -2.0, 70000.0, 2.0**-25])), Counted(torch.empty(0, 3))])
    assert (size.largest, size.smallest, size.calls) == (70000.0, 2.0**-25, 2)
    assert (size.zeros, size.nonfinite, size.too_large, size.too_small) == (1 / 4, 0, 1 / 4, 1 / 4)
    assert together([Counted(torch.zeros(3))]) == Magnitudes(0.0, math.inf, 1.0, calls=1, dtype="float32")


@pytest.mark.parametrize("value", [65504.0, 65519.0, 65520.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001])
def test_what_fp16_would_make_of_a_number_is_what_it_makes_of_it(value):
    half = torch.tensor([value]).half()
    for beside in (1.0, math.nan):  # with NaN all is counted the long way
        size = together([Counted(torch.tensor([value, beside]))])
        assert size.too_large == float(half.isinf()) / 2 and size.too_small == float(half == 0) / 2


TENSORS = {
    "ordinary": [0.5, -3.0],
    "zeros": [0.0, -0.0, 1.0],
    "large": [1e5, -65520.0, 65519.0],
    "small": [0.0, 1e-9, 2.0**-25, 2.0**-24],
    "nothing": [],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", TENSORS)
def test_the_quick_count_on_a_cpu_is_that_which_other_devices_make(name, dtype, monkeypatch):
    tensor = torch.tensor(TENSORS[name], dtype=torch.float64).clamp(-65504, 65504) if dtype == torch.float16 else None
    tensor = (torch.tensor(TENSORS[name]) if tensor is None else tensor).to(dtype)
    quick = Counted(tensor)
    monkeypatch.setattr(magnitudes, "_on_cpu", lambda size: None)
    slow = Counted(tensor)
    assert slow._numbers is None, "it waits until it is asked"
    settle([slow])
    assert quick.numbers == slow.numbers


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_is_bad_is_the_same_counted_or_looked_at(phase):
    for values in ([1.0, 2.0], [1.0, -math.inf], [1.0, math.inf], [-math.inf], [1e37, -math.inf], [math.nan], []):
        tensor = torch.tensor(values)
        assert Counted(tensor).bad(phase) == bool(is_bad(tensor, phase)), values
