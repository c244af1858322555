"""``python -m tinytrain doctor runs/first``: what is wrong with a run, from its log alone."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from tinytrain.commands.option_types import MaybeInt
from tinytrain.watch.doctor import diagnose


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is wrong with a run, from its log alone; exit status 1 if something is, 2 if no log can be read."""

    folder: tyro.conf.Positional[Path]
    """folder of the run"""
    vocab_size: MaybeInt = None
    """tokens in the model's vocabulary, with those it was padded by: the first loss is then compared with its ln"""


def doctor(options: Doctor) -> bool:
    """Print what is wrong with the run in ``options.folder``; True if nothing is."""
    findings = diagnose(options.folder, vocab_size=options.vocab_size)
    print(findings)
    return not findings
