import psutil
import pytest
import torch
from torch import nn

from tinytrain import device
from tinytrain.device import best_device, device_of, is_out_of_memory, memory_bytes, memory_limit, to_device


def test_the_best_device_is_one_that_works():
    assert torch.ones(2, device=best_device()).sum().item() == 2.0


def test_a_model_is_where_its_first_parameter_or_buffer_is():
    assert device_of(nn.Linear(1, 1, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(2, affine=False, device="meta")).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"


def test_a_batch_moves_as_a_whole():
    moved = to_device({"input_ids": torch.zeros(1), "labels": torch.zeros(1)}, torch.device("meta"))
    assert {tensor.device.type for tensor in moved.values()} == {"meta"}


def test_too_little_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)  # an exbibyte
    assert is_out_of_memory(caught.value) and is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit")) and not is_out_of_memory(ValueError("allocate"))


def test_memory_of_this_process_grows_with_a_tensor():
    before = memory_bytes(torch.device("cpu"))
    held = torch.ones(25_000_000)  # 100 MB
    assert memory_bytes(torch.device("cpu")) - before > 90_000_000
    assert held[0] == 1


def test_a_containers_limit_counts_where_it_is_below_the_machines(tmp_path, monkeypatch):
    cpu, limit = torch.device("cpu"), tmp_path / "memory.max"
    monkeypatch.setattr(device, "CGROUP_LIMITS", (limit, tmp_path / "none"))
    everything = psutil.virtual_memory().total
    for text, wanted in (("max\n", everything), ("1048576\n", 2**20), (str(2**62), everything)):
        limit.write_text(text)
        memory_limit.cache_clear()
        assert memory_limit(cpu) == wanted
    memory_limit.cache_clear()
