"""The laws of training, run on a trainer that somebody else has written: ``python -m tinytrain.course laws FILE``.

``contract.py`` says what is asked of it. Nothing is taken on trust: what a trainer did is noted from outside.
"""

from tinytrain.course.laws.contract import OwnTrainer
from tinytrain.course.laws.court import CannotUseError, load, run_laws
from tinytrain.course.laws.line import BROKEN, HOLDS, UNTESTED, Finding, Verdicts

__all__ = ["BROKEN", "HOLDS", "UNTESTED", "CannotUseError", "Finding", "OwnTrainer", "Verdicts", "load", "run_laws"]
