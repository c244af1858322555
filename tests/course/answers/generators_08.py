"""Answers to exercise 08.1: three generators in a file, wrong and right."""

import json
import random

import numpy as np
import torch


def three(saved=None, *, python=True, numpy=True, torchs=True, plain=True, parts=5):
    """The solution, with a part of it left out."""
    if saved is None:
        name, keys, *rest = np.random.get_state()
        return {
            "python": random.getstate(),
            "numpy": (name, keys.tolist() if plain else keys, *rest)[:parts],
            "torch": torch.get_rng_state(),
        }
    if python:
        random.setstate(saved["python"])
    if numpy:
        np.random.set_state(saved["numpy"])
    if torchs:
        torch.set_rng_state(saved["torch"])
    return saved


def leaving_out(**named):
    return lambda saved=None: three(saved, **named)


def seeds_anew(saved=None):
    """Draws a seed and puts all generators to its beginning, now and later."""
    seed = random.getrandbits(30) if saved is None else saved["seed"]
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return {"seed": seed}


def first_seed(saved=None):
    """Keeps torch's seed, which is where its stream began."""
    if saved is None:
        return {"seed": torch.initial_seed()}
    random.seed(saved["seed"])
    np.random.seed(saved["seed"] % 2**32)
    torch.manual_seed(saved["seed"])
    return saved


kept = {}


def keeps_the_first(saved=None):
    """Takes the states once, and hands out the same ones ever after."""
    if saved is None:
        kept.setdefault("states", three())
        return kept["states"]
    return three(saved)


beside = {}


def keeps_numpys_beside(saved=None):
    """Keeps NumPy's state in a variable of the module: another process has nothing there."""
    if saved is None:
        beside["numpy"] = np.random.get_state()
        return {"python": random.getstate(), "torch": torch.get_rng_state()}
    random.setstate(saved["python"])
    np.random.set_state(beside["numpy"])
    torch.set_rng_state(saved["torch"])
    return saved


def returns_only_the_names(saved=None):
    return dict.fromkeys(three(saved)) if saved is not None else three()


def uses_it_up(saved=None):
    if saved is not None:
        three(saved)
        saved["torch"].zero_()
        return saved
    return three()


def without_pythons_normal(saved=None):
    if saved is None:
        return three() | {"python": (*random.getstate()[:2], None)}
    return three(saved)


def as_text(saved=None):
    if saved is None:
        numpy = np.random.get_state(legacy=False)
        numpy["state"]["key"] = numpy["state"]["key"].tolist()
        return {"p": json.dumps(random.getstate()), "n": json.dumps(numpy), "t": torch.get_rng_state().tolist()}
    version, numbers, normal = json.loads(saved["p"])
    random.setstate((version, tuple(numbers), normal))
    np.random.set_state(json.loads(saved["n"]))
    torch.set_rng_state(torch.tensor(saved["t"], dtype=torch.uint8))
    return saved


def numpys_new_form(saved=None):
    if saved is None:
        numpy = np.random.get_state(legacy=False)
        numpy["state"]["key"] = numpy["state"]["key"].tolist()
        return {"python": random.getstate(), "numpy": numpy, "torch": torch.random.get_rng_state()}
    np.random.set_state(saved["numpy"] | {"state": saved["numpy"]["state"]})
    random.setstate(saved["python"])
    torch.random.set_rng_state(saved["torch"])
    return saved


def returns_nothing(saved=None):
    return None if three(saved) is saved else three()


def two_functions(saved=None):
    if saved is not None:
        for put, name in ((random.setstate, "a"), (torch.set_rng_state, "c")):
            put(saved[name])
        name, keys, position, has_gauss, gauss = saved["b"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
        return saved
    name, keys, position, has_gauss, gauss = np.random.get_state()
    numpy = [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss]
    return {"a": random.getstate(), "b": numpy, "c": torch.get_rng_state()}


BESIDE: list[dict] = []


def numbers_what_lies_beside(saved=None):
    """Keeps all states of this process in a list, and gives only their number."""
    if saved is None:
        BESIDE.append(three())
        return {"number": len(BESIDE) - 1}
    three(BESIDE[saved["number"]])
    return saved


WRONG = {
    "torch's alone": (leaving_out(python=False, numpy=False), "Python's generator is not where it was"),
    "without Python's": (leaving_out(python=False), "Python's generator is not where it was"),
    "without NumPy's": (leaving_out(numpy=False), "NumPy's generator is not where it was"),
    "without torch's": (leaving_out(torchs=False), "torch's generator is not where it was"),
    "NumPy's as it is": (leaving_out(plain=False), "an array"),
    "without the second normal number": (leaving_out(parts=3), "in pairs"),
    "seeds anew": (seeds_anew, "something was drawn or seeded"),
    "the seed of the start": (first_seed, "not the place in it"),
    "always the first states": (keeps_the_first, "not the place in it"),
    "nothing at all": (lambda saved=None: {} if saved is None else saved, "not the place in it"),
    "returns nothing after putting back": (returns_nothing, "It returned NoneType"),
    "NumPy's in a variable beside": (keeps_numpys_beside, "a variable beside it"),
    "only a number": (numbers_what_lies_beside, "in a variable beside it is not there when another process"),
    "returns only the names": (returns_only_the_names, "change nothing in it"),
    "uses the saved states up": (uses_it_up, "change nothing in it"),
    "without Python's second normal number": (without_pythons_normal, "Python's generator is not where it was"),
}
RIGHT = {
    "with tensors": two_functions,
    "the same": three,
    "NumPy's new form": numpys_new_form,
    "as text": as_text,
}
