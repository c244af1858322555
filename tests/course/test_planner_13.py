"""The picture of notebook 13's planner: a bar for each kind of memory."""

import pytest

from tinytrain.course.planner_13 import COLOURS, draw_memory
from tinytrain.model import PRESETS
from tinytrain.watch.planner import memory_of


def test_the_picture_of_a_plan_has_a_bar_for_each_kind():
    figure = draw_memory("350m", 16, "bf16", "no", "no", 1)
    memory = memory_of(PRESETS["350m"], micro_batch_size=16, precision="bf16")
    (ax,) = figure.axes
    kinds = [size for size in vars(memory).values() if size]
    assert len(ax.patches) == len(kinds) == len(figure.legends[0].get_texts())
    assert sum(patch.get_width() for patch in ax.patches) == pytest.approx(memory.total / 2**30)
    smaller = draw_memory("350m", 16, "bf16", "yes", "yes", 8)
    assert "estimate" in smaller.axes[0].get_title() and "estimate" not in ax.get_title()
    assert sum(patch.get_width() for patch in smaller.axes[0].patches) < 0.5 * memory.total / 2**30


def test_every_kind_of_memory_has_its_colour():
    assert set(COLOURS) == set(vars(memory_of(PRESETS["nano"], micro_batch_size=1)))
