"""A guess as a reader meets it: choose, be told, reveal; and again in the saved file, without a kernel's help."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.browser

SOURCE = """\
from tinytrain.course.guess import guess

choices = {"a mask that leaks": "The loss says so.", "a rate too high": "Then it would swing."}
guess("What was done?", choices, right="a mask that leaks", reveal="Line 12 lets every token see the next.")"""
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def folds_of(page):
    folds = page.page.locator(".jp-OutputArea-output details")
    page.bring_into_view(folds.first)
    return [folds.nth(i) for i in range(folds.count())]


def choose(fold):
    before = fold.locator("p").first.is_visible()
    fold.locator("summary").click()
    return before, fold.locator("p").first.inner_text()


def test_choosing_tells_and_revealing_shows(lab, open_notebook, screenshots):
    notebook = new_notebook(cells=[new_code_cell(SOURCE)], metadata=METADATA)
    nbformat.write(notebook, lab.root / "guess.ipynb")
    page = open_notebook("guess.ipynb")
    page.run_all()
    page.wait_until_done(seconds=60)
    leak, rate, truth = folds_of(page)
    assert choose(rate) == (False, "No. Then it would swing.")
    assert choose(leak) == (False, "Yes. The loss says so.")
    assert choose(truth) == (False, "Line 12 lets every token see the next.")
    page.page.screenshot(path=screenshots / "guess.png")
    page.save()
    assert page.problems == []
    page.close()

    again = open_notebook("guess.ipynb")
    leak, _, _ = folds_of(again)
    assert choose(leak) == (False, "Yes. The loss says so."), "the saved file answers without being run"
