"""Every fault case that this project knows has a test here, and every test here names a case of the list.

A case's test is a top-level function of a file in this folder whose name begins with ``test_<id>_``.
"""

import ast
import re
from pathlib import Path

import pytest

CASES = {
    "A01": "a mean over no targets is NaN",
    "A02": "label smoothing counts ignored rows",
    "A05": "a label outside the vocabulary, or another ignore value",
    "A06": "padding equal to the end token hides the end",
    "A07": "labels shifted zero times or twice",
    "A08": "evaluation as a mean of batch means",
    "B01": "the gradient as a mean of means",
    "B02": "loss and norm multiplied by the number of micro-batches",
    "B03": "the last partial window dropped or scaled as a full one",
    "B06": "the schedule counts micro-batches",
    "B07": "accumulation divided by devices instead of processes",
    "C01": "decay on biases and norms",
    "C02": "decay on biases and norms only",
    "C05": "optimizer state matched by position",
    "C07": "a norm that overflows zeroes the gradient",
    "D01": "the first update at a rate of 0",
    "D02": "warmup and total in every relation",
    "D03": "the cosine climbs again",
    "D05": "the order of loading changes the rate",
    "D07": "the rate moves on after a skipped update",
    "D08": "one update without clipping, and a peak from a default",
    "E01": "clipped before unscaled",
    "E02": "unscaled once per micro-batch",
    "E03": "weights in half precision",
    "E04": "a scaler that is silently off",
    "E08": "an evaluation inside autocast takes the gradients away",
    "E09": "a mask constant that FP16 cannot hold",
    "E11": "NaN from the branch that was not taken",
    "F01": "a row that may look nowhere",
    "F02": "what padding holds leaks out",
    "F03": "a mask turned round",
    "F06": "packed documents see each other",
    "F10": "buckets repeat or lose documents",
    "F11": "buckets always from short to long",
    "F13": "a mask of ones changes the result",
    "G01": "a stride that skips a target",
    "G02": "a window past the end, or a text too short for any",
    "G04": "rows that depend on the worker",
    "G06": "an id outside the vocabulary",
    "G07": "a text in another encoding",
    "H01": "generator states that a safe load refuses",
    "H02": "rows repeated and lost after a stop in mid-epoch",
    "H03": "generators moved between their restoring and their use",
    "H05": "an epoch begun again, or left early",
    "H07": "the only checkpoint destroyed while saving",
    "H08": "names with a wrapper's prefix",
    "H10": "the best weights as a live reference",
    "H11": "the optimizer's count and moments in another type",
    "H12": "moments that are not restored",
    "H15": "a model left in eval mode",
    "I01": "a mean of the processes' means",
    "I03": "gradients exchanged although they should wait",
    "I05": "one process has more batches than the others",
    "I06": "every epoch in the same order",
    "I07": "weights that take no part",
    "I09": "a function that a new process cannot see",
    "I11": "an address that is in use",
    "I14": "processes left behind by an interrupt",
    "J01": "a new figure for every update",
    "J02": "a thread's words lost when its cell ends",
    "J04": "clearing takes what came after it",
    "J05": "the plot clears other output",
    "J06": "a notebook that grows with the run",
    "J08": "notebooks run side by side",
    "J10": "tokens per second that forget micro-batches",
}
"""id -> the kind of fault"""

NAME = re.compile(r"test_([a-z]\d\d)_", re.IGNORECASE)


def files_by_case() -> dict[str, list[str]]:
    """Case id -> the files that have a test function for it, read without running them."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and (named := NAME.match(node.name)):
                found.setdefault(named[1].upper(), []).append(path.name)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_case_has_a_test_in_its_groups_file(case):
    files = files_by_case().get(case, [])
    assert files, f"{case} ({CASES[case]}) has no test function named test_{case}_... in {Path(__file__).parent.name}/"
    assert all(name.startswith(f"test_{case[0]}_") for name in files), files


def test_every_test_here_stands_for_a_case_of_the_list():
    assert set(files_by_case()) <= set(CASES)
