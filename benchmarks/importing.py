"""How long `import tinytrain` takes over `import torch`: fresh interpreters taking turns, medians.

python benchmarks/importing.py
"""

import statistics
import subprocess
import sys
import time

TURNS = 7
STATEMENTS = (
    "import torch",
    "import torch, tinytrain",
    "import torch, tinytrain.train",
    "import torch, tinytrain.watch.live",
)


def seconds(statement):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main():
    times = {statement: [] for statement in STATEMENTS}
    for turn in range(TURNS + 1):
        for statement in STATEMENTS:
            took = seconds(statement)
            if turn:  # the first turn reads the files into memory
                times[statement].append(took)
    print("| statement | seconds | over the first |\n|---|---|---|")
    first = statistics.median(times[STATEMENTS[0]])
    for statement, values in times.items():
        median = statistics.median(values)
        print(f"| `{statement}` | {median:.2f} | {f'{median - first:+.2f}' if statement != STATEMENTS[0] else ''} |")


if __name__ == "__main__":
    main()
