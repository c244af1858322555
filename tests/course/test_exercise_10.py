"""What the checks of notebook 10 draw: each mistake is met in the norms that are made for it."""

import pytest

from tinytrain.course.drawn_10 import BORDERS, MISTAKES, bordering, telling
from tinytrain.course.exercise_10 import first_spike, name_it


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_each_mistake_errs_where_it_is_meant_to_and_the_later_ones_do_not(number):
    told, mistake = list(MISTAKES.items())[number]
    for _ in range(40):
        norms, times, window, wanted = telling(told)
        assert first_spike(norms, times, window) == wanted != mistake(norms, times, window)
        assert [m(norms, times, window) for m in list(MISTAKES.values())[number + 1 :]] == [wanted] * (6 - number)


@pytest.mark.parametrize(("kind", "number"), [(kind, i) for kind, cases in BORDERS.items() for i in range(len(cases))])
def test_a_log_near_a_border_is_of_its_kind(kind, number):
    for _ in range(40):
        losses, evals = bordering(BORDERS[kind][number])
        assert name_it(losses, evals) == kind and 5.3 < losses[0] < 5.8 and len(losses) >= 200
