"""How long `pytest --nbmake notebooks/` takes, notebook by notebook, in the budget of the tests.

Each runs in a fresh kernel, one after the other. CPU-seconds count the kernel and every process that it starts.
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def measure(path):
    """(seconds, CPU-seconds) of one notebook under nbmake. Raises ``RuntimeError`` if a cell fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", str(path)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, cwd=NOTEBOOKS.parent, env=os.environ | {"TINYTRAIN_BUDGET": "ci"}, capture_output=True
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{path.name} failed:\n{done.stdout.decode()[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    print("| notebook | seconds | CPU-seconds |\n|---|---|---|")
    times = []
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        times.append(measure(path))
        print(f"| {path.stem.replace('_', ' ')} | {times[-1][0]:.0f} | {times[-1][1]:.0f} |", flush=True)
    print(f"| all | {sum(s for s, _ in times):.0f} | {sum(cpu for _, cpu in times):.0f} |")


if __name__ == "__main__":
    main()
