"""Is this model healthy before a single update? Each line is one test, its number, and what to do.

>>> import torch
>>> from tinytrain import GPT, PRESETS
>>> from tinytrain.watch.preflight import preflight
>>> ids = torch.arange(17)[None]
>>> report = preflight(GPT(PRESETS["nano"]), {"input_ids": ids[:, :-1], "labels": ids[:, 1:]})
>>> report.passed, report["labels shifted once"].passed
(True, True)
"""

from tinytrain.watch.preflight.leak import future_leak, influence
from tinytrain.watch.preflight.lines import preflight
from tinytrain.watch.preflight.report import Line, Report

__all__ = ["Line", "Report", "future_leak", "influence", "preflight"]
