"""`make bench`: run the benchmarks one after the other and write what they print into RESULTS.md.

    python benchmarks/report.py               all of them, about ten minutes on two quiet cores
    python benchmarks/report.py importing     some of them; the other sections stay as they are
    python benchmarks/report.py notebooks     every notebook, ten minutes more: only if it is named
    python benchmarks/report.py gpu           the same, on a machine with a CUDA device

Each section of RESULTS.md stands between two comments with its name; what stands elsewhere is kept. The table at its
head compares what was asked for with what is recorded (`marks.py`), and is made anew each time.
"""

import argparse
import datetime
import platform
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import marks

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
SECTIONS = {
    "overhead": ("What a step costs over a bare loop", ["overhead.py"]),
    "tokens": ("Tokens per second of the 0.8 M configuration", ["overhead.py", "--tokens"]),
    "batches": ("Real tokens per second with mixed lengths", ["batches.py"]),
    "saving": ("How long a save blocks training", ["saving.py"]),
    "live plot": ("What a live plot costs", ["live_plot.py"]),
    "hunting": ("What a NanHunt costs while it is on", ["hunting.py"]),
    "importing": ("What an import costs", ["importing.py"]),
    "notebooks": ("What the notebooks cost under nbmake", ["notebook_time.py"]),
    "gpu": ("On a GPU", ["gpu.py"]),
}
IF_NAMED = {"notebooks", "gpu"}


def machine():
    """Date, processor and versions, in a line."""
    import torch

    names = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", names.read_text()) if names.is_file() else None
    processor = found[1] if found else platform.processor() or platform.machine()
    return f"{datetime.date.today()}, {processor}, Python {platform.python_version()}, torch {torch.__version__}"


def section(name, title, body, where):
    """One section, with the comments that find it again."""
    head = f"<!-- begin {name} -->\n## {title} (`{SECTIONS[name][1][0]}`)"
    return f"{head}\n\n{where}.\n\n{body.strip()}\n<!-- end {name} -->"


def written(text, name, new):
    """``text`` with the section ``name`` replaced by ``new``, or with it at the end."""
    old = re.compile(rf"<!-- begin {re.escape(name)} -->.*?<!-- end {re.escape(name)} -->", re.DOTALL)
    return old.sub(lambda _match: new, text) if old.search(text) else f"{text.rstrip()}\n\n{new}\n"


def with_marks(text):
    """``text`` with the table of marks at its head made from its other sections."""
    return written(text, "marks", f"<!-- begin marks -->\n{marks.table(text)}\n<!-- end marks -->")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sections", nargs="*", choices=[[], *SECTIONS], help="all but notebooks and gpu if none is named"
    )
    wanted = parser.parse_args().sections or [name for name in SECTIONS if name not in IF_NAMED]
    where = machine()
    for name in wanted:
        title, command = SECTIONS[name]
        print(f"{name} ...", flush=True)
        done = subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with status {done.returncode}: its section stays as it was")
        print(done.stdout)
        text = written(RESULTS.read_text("utf-8"), name, section(name, title, done.stdout, where))
        RESULTS.write_text(with_marks(text), "utf-8")


if __name__ == "__main__":
    main()
