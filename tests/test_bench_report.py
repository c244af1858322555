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


def test_the_marks_are_read_from_the_sections_and_the_worst_number_decides():
    bench = report()
    text = "# Measured\n\n<!-- begin marks -->\n<!-- end marks -->\n\nby hand\n"
    rows = "| | bucketed | 8 % | 5,445 | 2.34 |\n| | bucketed | 2 % | 7,989 | {} |\n"
    for worst, said in ((1.39, "**missed**"), (1.4, "reached")):
        new = bench.section("batches", "Batches", rows.format(worst), "now")
        made = bench.with_marks(bench.written(text, "batches", new))
        (row,) = [line for line in made.splitlines() if line.startswith("| real tokens/s")]
        assert row.endswith(f"| 2.34, {worst} | {said} |") and "by hand" in made
        assert bench.with_marks(made) == made
    assert "not measured: no GPU yet" in made


def test_every_mark_finds_its_number_where_its_section_is_recorded_and_the_table_is_of_today():
    bench = report()
    text = (HERE / "RESULTS.md").read_text("utf-8")
    recorded = bench.marks.sections(text)
    for mark in bench.marks.MARKS:
        assert mark.section in bench.SECTIONS, mark.what
        said = bench.marks.line(mark, recorded)
        assert ("not measured" in said) == (mark.section not in recorded), said
    assert bench.with_marks(text) == text
    gpu = {"gpu": "| BF16 | 480,000 | 1 % |\n| BF16, compiled | 575,000 | 1 % |\n"}
    (mark,) = [mark for mark in bench.marks.MARKS if mark.section == "gpu"]
    assert bench.marks.line(mark, gpu).endswith("480,000, 575,000 | reached |")
