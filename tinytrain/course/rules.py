"""From a measured number to a verdict. A rule says itself in words; it is best chosen before the number is known.

The verdicts: ``holds``, ``holds if …``, ``does not hold``, ``no difference seen at this size`` and
``not measurable here: needs …``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Measured = float | Mapping[str, float]

HOLDS = "holds"
FAILS = "does not hold"
NO_DIFFERENCE = "no difference seen at this size"
NOT_MEASURABLE = "not measurable here: needs "
SPREADS = 3.0  # a difference smaller than this many standard deviations is not called one


@dataclass(frozen=True)
class Rule:
    """``says`` in words what is asked of the number; ``judge`` gives the verdict."""

    says: str
    judge: Callable[[Measured], str]

    def __call__(self, measured: Measured) -> str:
        for name, value in values_of(measured).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"measured {name or 'value'} is {type(value).__name__}; a plain number is needed")
            if math.isnan(value):
                raise ValueError(f"measured {name or 'value'} is NaN: no verdict follows from it")
        return self.judge(measured)


def values_of(measured: Measured) -> dict[str, float]:
    """The numbers by label; one number alone has the label ``""``."""
    values = dict(measured) if isinstance(measured, Mapping) else {"": measured}
    if not values:
        raise ValueError("nothing was measured: give a number, or at least one number by its label")
    return values


def above(limit: float) -> Rule:
    """Holds where the number, or every number, is more than ``limit``.

    >>> above(2)(3.0), above(2)({"a": 3.0, "b": 1.0})
    ('holds', 'does not hold')
    """
    _check_limits(limit)
    return _every(f"more than {limit:.4g}", lambda value: value > limit)


def below(limit: float) -> Rule:
    """Holds where the number, or every number, is less than ``limit``."""
    _check_limits(limit)
    return _every(f"less than {limit:.4g}", lambda value: value < limit)


def between(low: float, high: float) -> Rule:
    """Holds where the number, or every number, is at least ``low`` and at most ``high``."""
    _check_limits(low, high)
    if low > high:
        raise ValueError(f"between({low}, {high}): the lower end comes first")
    return _every(f"from {low:.4g} to {high:.4g}", lambda value: low <= value <= high)


def _check_limits(*limits: float) -> None:
    if not all(map(math.isfinite, limits)):
        raise ValueError(f"a limit of {', '.join(map(str, limits))} decides nothing: it must be finite")


def _every(says: str, test: Callable[[float], bool]) -> Rule:
    return Rule(says, lambda measured: HOLDS if all(map(test, values_of(measured).values())) else FAILS)


def only_if(condition: str, rule: Rule) -> Rule:
    """For a claim that holds in some cases: the first number is where ``condition`` is met, the others where it is not.

    >>> only_if("nothing is padded", below(0.1))({"full rows": 0.0, "half padding": 0.5})
    'holds if nothing is padded'
    """

    if not condition:
        raise ValueError("only_if needs its condition in words")

    def judge(measured: Measured) -> str:
        first, *others = (rule(value) for value in values_of(measured).values())
        if not others:
            raise ValueError(f"only_if({condition!r}) needs two numbers: with the condition, and without it")
        if first != HOLDS:
            return first
        return HOLDS if all(other == HOLDS for other in others) else f"holds if {condition}"

    return Rule(f"{rule.says} where {condition} (the first number), and not everywhere else", judge)


def beyond_spread(spread: float, at_least: float = 0.0) -> Rule:
    """For two arms over several seeds: the number is by how much the claim's arm is better, negative where it is worse.

    A difference smaller than three times ``spread`` (the larger arm's standard deviation over seeds) is none. One
    that is larger holds if it is more than ``at_least``.

    >>> rule = beyond_spread(0.01)
    >>> rule(0.02), rule(0.05), rule(-0.05)
    ('no difference seen at this size', 'holds', 'does not hold')
    """
    _check_limits(spread, at_least)
    if not spread > 0:
        raise ValueError(f"spread={spread}: the standard deviation over seeds must be more than 0")
    if at_least < 0:
        raise ValueError(f"at_least={at_least} must be 0 or more")

    def judge(measured: Measured) -> str:
        verdicts = [_judge_difference(value, SPREADS * spread, at_least) for value in values_of(measured).values()]
        return next((bad for bad in (FAILS, NO_DIFFERENCE) if bad in verdicts), HOLDS)

    noise = f"better by more than {SPREADS * spread:.2g}, which is three times the spread over seeds"
    return Rule(f"{noise}, and by more than {at_least:.4g}" if at_least else noise, judge)


def _judge_difference(value: float, noise: float, at_least: float) -> str:
    if abs(value) < noise:
        return NO_DIFFERENCE
    return HOLDS if value > at_least else FAILS


def not_measurable(needs: str) -> Rule:
    """For what a laptop cannot show. The number given is the nearest thing that was measured.

    >>> not_measurable("a model of 1 B parameters")(0.3)
    'not measurable here: needs a model of 1 B parameters'
    """
    if not needs:
        raise ValueError("not_measurable needs what it takes, in words")
    return Rule("the number is the nearest thing that was measured", lambda measured: f"{NOT_MEASURABLE}{needs}")
