import math

from tinytrain.course.means import block_means, running_mean


def test_a_running_mean_begins_with_what_there_is():
    assert running_mean([1.0, 3.0, 5.0, 9.0], width=3) == [1.0, 2.0, 3.0, 17 / 3]


def test_it_leaves_gaps_where_there_was_no_number():
    values = [1.0, 3.0, math.nan, 5.0]
    assert running_mean(values, width=2)[:2] == [1.0, 2.0]
    assert math.isnan(running_mean(values, width=2)[2]) and running_mean([math.nan, 5.0], width=2)[1] == 5.0


def test_block_means_say_where_they_end_and_leave_out_what_fills_no_block():
    ends, means = block_means([1.0, 3.0, 5.0, 7.0, 9.0], width=2)
    assert (list(ends), means) == ([2, 4], [2.0, 6.0])
