"""Notebook 13's slow network: the formula, the link, and DDP over it."""

import math

import torch

from tinytrain.course.network_13 import Link, end_of_step, slow_network
from tinytrain.distributed import launch


def test_a_link_sends_one_message_at_a_time():
    assert end_of_step(10, [4, 7, 10], [2, 2, 2], 1) == 12
    assert end_of_step(10, [1, 2, 3], [4, 4, 4], 1) == 13  # 1 to 5, to 9, to 13
    assert end_of_step(20, [1, 2, 3], [4, 4, 4], 1) == 20
    assert end_of_step(10, [10], [6], 2) == 13
    assert end_of_step(10, [4, 10], [6, 6], math.inf) == 10


def test_a_step_over_a_slow_link_takes_as_long_as_the_link_at_least():
    found = launch(slow_network, 1, {"fast": (1, 1.0, 0.0), "slow": (1, 1.0, 0.3), "one": (1, 1000.0, 0.0)}, 1)[0]
    assert found["slow"]["seconds"] >= 0.3
    assert sum(found["slow"]["sizes"]) == sum(found["one"]["sizes"]) == 4 * 842_496
    assert len(found["one"]["ready"]) == 1 < len(found["fast"]["ready"]) == len(found["fast"]["sizes"])
    assert found["fast"]["ready"] == sorted(found["fast"]["ready"])


class Bucket:
    def __init__(self, n):
        self.values = torch.ones(n)

    def buffer(self):
        return self.values


def test_messages_wait_in_line_and_come_back_as_they_were():
    link = Link(4000.0)
    first, second = link.send(None, Bucket(100)), link.send(None, Bucket(50))
    assert link.sizes == [400, 200] and link.free - link.start >= 0.15
    assert second.wait().sum() == 50 and first.done()
    link.restart()
    assert link.ready == link.sizes == []
