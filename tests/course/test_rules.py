import math

import pytest

from tinytrain.course.rules import above, below, between, beyond_spread, not_measurable, only_if


@pytest.mark.parametrize(
    ("rule", "measured", "verdict"),
    [
        (above(2), 2.1, "holds"),
        (above(2), 2, "does not hold"),
        (above(2), {"a": 3, "b": 4}, "holds"),
        (above(2), {"a": 3, "b": 1}, "does not hold"),
        (below(2), 1, "holds"),
        (below(2), 2, "does not hold"),
        (between(1, 2), 1, "holds"),
        (between(1, 2), 2, "holds"),
        (between(1, 2), 0.99, "does not hold"),
        (between(1, 2), math.inf, "does not hold"),
        (only_if("it rains", below(2)), {"rain": 1, "sun": 3}, "holds if it rains"),
        (only_if("it rains", below(2)), {"rain": 1, "sun": 1, "snow": 5}, "holds if it rains"),
        (only_if("it rains", below(2)), {"rain": 1, "sun": 1}, "holds"),
        (only_if("it rains", below(2)), {"rain": 3, "sun": 1}, "does not hold"),
        (only_if("it rains", beyond_spread(0.1)), {"rain": 0.1, "sun": 0.1}, "no difference seen at this size"),
        (beyond_spread(0.1), 0.29, "no difference seen at this size"),
        (beyond_spread(0.1), -0.29, "no difference seen at this size"),
        (beyond_spread(0.1), 0.31, "holds"),
        (beyond_spread(0.1), -0.31, "does not hold"),
        (beyond_spread(0.1, at_least=0.5), 0.4, "does not hold"),
        (beyond_spread(0.1, at_least=0.5), 0.6, "holds"),
        (beyond_spread(0.1), {"one": 0.4, "two": 0.1}, "no difference seen at this size"),
        (beyond_spread(0.1), {"one": 0.4, "two": -0.4, "three": 0.1}, "does not hold"),
        (not_measurable("a GPU"), 3, "not measurable here: needs a GPU"),
    ],
)
def test_the_verdict_follows_from_the_number(rule, measured, verdict):
    assert rule(measured) == verdict


def test_a_rule_says_its_threshold():
    assert above(0.5).says == "more than 0.5"
    assert between(1, 2).says == "from 1 to 2"
    assert (
        only_if("it rains", below(2)).says == "less than 2 where it rains (the first number), and not everywhere else"
    )
    assert "0.3" in beyond_spread(0.1).says and "0.5" in beyond_spread(0.1, at_least=0.5).says


@pytest.mark.parametrize(
    ("measured", "error", "message"),
    [
        (math.nan, ValueError, "measured value is NaN"),
        ({"late": math.nan}, ValueError, "measured late is NaN"),
        ({}, ValueError, "nothing was measured"),
        ("3", TypeError, "measured value is str"),
        (True, TypeError, "measured value is bool"),
        ({"late": None}, TypeError, "measured late is NoneType"),
    ],
)
def test_no_verdict_without_a_number(measured, error, message):
    with pytest.raises(error, match=message):
        above(1)(measured)


def test_rules_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="needs two numbers"):
        only_if("it rains", below(2))({"rain": 1})
    with pytest.raises(ValueError, match="lower end comes first"):
        between(2, 1)
    with pytest.raises(ValueError, match="must be more than 0"):
        beyond_spread(0)
    for rule in (above, below, beyond_spread, lambda limit: between(0, limit), lambda limit: beyond_spread(1, limit)):
        for limit in (math.nan, math.inf):
            with pytest.raises(ValueError, match="must be finite"):
                rule(limit)
    with pytest.raises(ValueError, match="in words"):
        only_if("", below(2))
    with pytest.raises(ValueError, match="in words"):
        not_measurable("")
    with pytest.raises(ValueError, match="at_least=-1"):
        beyond_spread(0.1, at_least=-1)
