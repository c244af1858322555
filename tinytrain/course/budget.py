"""How much a notebook may compute: ``TINYTRAIN_BUDGET`` is ``ci``, ``laptop`` (the default) or ``gpu``."""

import os
from typing import TypeVar

BUDGETS = ("ci", "laptop", "gpu")
Value = TypeVar("Value")


def budget() -> str:
    """The budget in force. Raises ``ValueError`` for a name that is none of the three."""
    name = os.environ.get("TINYTRAIN_BUDGET", "laptop")
    if name not in BUDGETS:
        raise ValueError(f"TINYTRAIN_BUDGET={name!r} is not one of {', '.join(BUDGETS)}")
    return name


def by_budget(*, ci: Value, laptop: Value, gpu: Value | None = None) -> Value:
    """The value for the budget in force; ``gpu`` is as ``laptop`` where it is not given."""
    return {"ci": ci, "laptop": laptop, "gpu": laptop if gpu is None else gpu}[budget()]
