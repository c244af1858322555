"""`make bench` writes over the sections that it measured, and over nothing else."""

import importlib.util
from pathlib import Path

HERE = Path(__file__).parents[1] / "benchmarks"


def report():
    spec = importlib.util.spec_from_file_location("bench_report", HERE / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_section_is_replaced_where_it_stands_or_put_at_the_end():
    bench = report()
    text = "# Measured\n\n<!-- begin saving -->\nold\n<!-- end saving -->\n\n## By hand\n\nkept\n"
    new = bench.section("saving", "Saving", "| a |\n", "2026, a machine")
    once = bench.written(text, "saving", new)
    assert "old" not in once and once.count("| a |") == 1 and once.endswith("## By hand\n\nkept\n")
    assert "## Saving (`saving.py`)" in once and "2026, a machine." in once
    other = bench.written(once, "importing", bench.section("importing", "Imports", "| b |", "now"))
    assert other.index("kept") < other.index("| b |") and bench.written(other, "saving", new) == other


def test_every_section_has_its_program_and_what_is_recorded_is_found_again():
    bench = report()
    assert all((HERE / command[0]).is_file() for _, command in bench.SECTIONS.values())
    text = (HERE / "RESULTS.md").read_text("utf-8")
    recorded = [name for name in bench.SECTIONS if f"<!-- begin {name} -->" in text]
    assert len(recorded) >= 5 and all(text.count(f"<!-- end {name} -->") == 1 for name in recorded)


def test_it_says_where_it_measured():
    where = report().machine()
    assert "torch 2" in where and "Python 3" in where and where.startswith("20")
