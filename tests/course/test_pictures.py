"""The README's pictures of lessons are those that the notebooks have stored."""

from pathlib import Path

import nbformat
import pytest

from tinytrain.course.pictures import PICTURES, stored_picture, write_pictures

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_the_readme_is_the_one_that_its_notebook_stored(name):
    file, words = PICTURES[name]
    picture = (ROOT / "docs" / f"lesson_{name}.png").read_bytes()
    assert picture == stored_picture(ROOT / "notebooks" / file, words), "run `make claims`"
    assert f"docs/lesson_{name}.png" in (ROOT / "README.md").read_text("utf-8")


def test_a_cell_without_its_picture_is_named(tmp_path):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("draw('a title')")]), tmp_path / "a.ipynb")
    with pytest.raises(LookupError, match=r"a\.ipynb: 0 pictures in cells with 'a title'"):
        stored_picture(tmp_path / "a.ipynb", "a title")


def test_all_are_written_anew(tmp_path):
    write_pictures(ROOT / "notebooks", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"lesson_{name}.png" for name in PICTURES)
