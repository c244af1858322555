import pytest
import torch
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.weights import (
    export_weights,
    load_model_state,
    load_weights,
    unwrap,
)


def gpt(seed=0):
    torch.manual_seed(seed)
    return GPT(PRESETS["nano"])


def compiled(model):
    """The wrapper of ``torch.compile``; nothing is compiled before the first call."""
    return torch.compile(model, backend="eager")


class OnlyAModule(nn.Module):
    """A model all of whose names begin like a wrapper's."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2)


class WithAModule(nn.Module):
    """A model that has a part called ``module`` itself, and one weight outside of it that goes by the same name."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2, bias=False)
        self.weight = nn.Parameter(torch.zeros(2, 2))


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_wrappers_are_taken_off_however_they_are_nested(one_process):
    model, parallel = gpt(), nn.parallel.DistributedDataParallel
    for wrapped in (
        model,
        parallel(model),
        compiled(model),
        parallel(compiled(model)),
        compiled(parallel(model)),
        nn.DataParallel(model),
    ):
        assert unwrap(wrapped) is model


def test_a_part_called_module_is_no_wrapper():
    model = WithAModule()
    assert unwrap(model) is model and unwrap(compiled(model)) is model


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("make", [gpt, WithAModule, OnlyAModule])
def test_a_wrappers_prefix_does_not_matter(make, prefix):
    saved, model = weights_of(make()), make()
    with torch.no_grad():
        for number, tensor in enumerate(saved.values()):
            tensor.fill_(number)
        if "head.weight" in saved:
            saved["head.weight"] = saved["tokens.weight"]
    load_model_state(model, {prefix + name: tensor for name, tensor in saved.items()})
    assert equal(weights_of(model), saved)


def test_weights_go_into_the_model_inside_a_wrapper():
    model, other = gpt(0), gpt(1)
    load_model_state(compiled(model), compiled(other).state_dict())
    assert equal(weights_of(model), weights_of(other))


def refused(model, state, source="the file"):
    before = weights_of(model)
    with pytest.raises(ValueError) as caught:
        load_model_state(model, state, source=source)
    assert equal(weights_of(model), before), "something was loaded"
    return str(caught.value)


def test_every_difference_is_listed_and_nothing_is_loaded():
    state = weights_of(gpt(1))
    state["stranger"] = torch.ones(1)
    del state["norm.weight"]
    state["norm.bias"] = torch.ones(65)
    state["positions.weight"] = state["positions.weight"].half()
    assert refused(gpt(), state) == (
        "the file do not belong to this GPT:\n"
        "  norm.weight: only in the model\n"
        "  stranger: only in the file\n"
        "  norm.bias: [65] in the file, [64] in the model\n"
        "  positions.weight: torch.float16 in the file, torch.float32 in the model"
    )


def test_names_of_which_only_some_have_a_prefix_are_not_guessed_at():
    state = weights_of(gpt(1))
    state["module.norm.weight"] = state.pop("norm.weight")
    message = refused(gpt(), state)
    assert "norm.weight: only in the model" in message and "module.norm.weight: only in the file" in message


def test_two_different_tensors_do_not_go_into_one():
    state = weights_of(gpt(1))
    state["head.weight"] = state["tokens.weight"] + 1
    assert "head.weight: another tensor than tokens.weight in the file" in refused(gpt(), state)
    state["head.weight"] = state["tokens.weight"].clone()
    load_model_state(gpt(), state)


def test_weights_that_are_not_numbers_are_no_difference():
    state = weights_of(gpt(1))
    state["tokens.weight"][0, 0] = torch.nan
    state["head.weight"] = state["tokens.weight"].clone()
    load_model_state(gpt(), state)


def test_exported_weights_come_back_and_what_was_tied_stays_tied(tmp_path):
    model, other = gpt(0), gpt(1)
    export_weights(compiled(model), tmp_path / "new" / "weights.safetensors")
    load_weights(other, tmp_path / "new" / "weights.safetensors")
    assert equal(weights_of(other), weights_of(model))
    assert other.head.weight is other.tokens.weight
    size = (tmp_path / "new" / "weights.safetensors").stat().st_size
    assert size < 4 * model.num_parameters() + 5000, "the tied weight is stored once"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["weights.safetensors"]


def test_other_libraries_read_the_exported_names(tmp_path):
    from safetensors.torch import load_file

    model = gpt()
    export_weights(model, tmp_path / "weights.safetensors")
    names = set(load_file(tmp_path / "weights.safetensors"))
    assert set(dict(model.named_parameters())) - names <= {"tokens.weight"} and not {n for n in names if "_orig" in n}


@pytest.mark.parametrize("stored", ["head.weight", "tokens.weight"])
def test_a_tied_weight_is_found_under_either_name(tmp_path, stored):
    from safetensors.torch import save_file

    state = weights_of(gpt(1))
    one = state.pop("head.weight")
    state.pop("tokens.weight")
    save_file(state | {stored: one}, tmp_path / "weights.safetensors")
    model = gpt()
    load_weights(model, tmp_path / "weights.safetensors")
    assert torch.equal(model.tokens.weight, one) and model.head.weight is model.tokens.weight


def test_two_empty_buffers_are_not_tied(tmp_path):
    model = nn.Module()
    model.register_buffer("a", torch.empty(0))
    model.register_buffer("b", torch.empty(0))
    model.c = nn.Linear(2, 2)
    export_weights(model, tmp_path / "weights.safetensors")
    load_weights(model, tmp_path / "weights.safetensors")


def test_weights_of_another_model_are_refused_by_the_files_name(tmp_path):
    path = tmp_path / "weights.safetensors"
    export_weights(nn.Linear(2, 3), path)
    with pytest.raises(ValueError, match=r"weights\.safetensors do not belong to this Linear:\n  bias: \[3\] in the"):
        load_weights(nn.Linear(2, 4), path)


@pytest.mark.parametrize("length", [0, 4, 40, -1])
def test_a_damaged_file_is_named(tmp_path, length):
    path = tmp_path / "weights.safetensors"
    export_weights(nn.Linear(2, 3), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"weights\.safetensors is no whole safetensors file .*export it again"):
        load_weights(nn.Linear(2, 3), path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        load_weights(nn.Linear(2, 3), tmp_path / "none")


def test_a_failed_export_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    export_weights(nn.Linear(2, 3), path)
    before = path.read_bytes()

    def dies(model, name):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_model", dies)
    with pytest.raises(OSError, match="No space left"):
        export_weights(nn.Linear(2, 3), path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
