"""What is wrong with a run, told from its log alone: ``diagnose(run)``."""

from tinytrain.watch.doctor.examine import diagnose
from tinytrain.watch.doctor.finding import Finding, Findings

__all__ = ["Finding", "Findings", "diagnose"]
