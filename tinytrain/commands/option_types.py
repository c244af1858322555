"""Options that may be left out, as ``--help`` shows them: ``--steps INT`` and no ``{None}|INT``, no ``default: None``.

What happens without them is said in the words of each option.
"""

from typing import Annotated

import tyro


def shown_as(name: str) -> object:
    """For ``Annotated``: the option's value is called ``name``, and no default is told."""
    return tyro.conf.arg(metavar=name, help_behavior_hint="")


MaybeInt = Annotated[int | None, shown_as("INT")]
MaybeFloat = Annotated[float | None, shown_as("FLOAT")]
MaybeText = Annotated[str | None, shown_as("TEXT")]
MaybeBool = Annotated[bool | None, shown_as("{True,False}")]
