import math
from dataclasses import replace

import pytest

from tinytrain.config import TrainConfig

CONFIG = TrainConfig(total_steps=6, max_lr=1e-3, warmup_steps=2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"warmup_steps": 7}, "warmup_steps=7 is more than total_steps=6"),
        ({"eval_every": 0}, "eval_every=0"),
        ({"max_skipped_in_a_row": 0}, "max_skipped_in_a_row=0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"min_lr": 1.0}, "min_lr=1.0"),
    ],
)
def test_a_config_that_makes_no_run_is_refused_when_it_is_made(changed, words):
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **changed)


def test_the_minimum_is_a_tenth_also_of_a_maximum_that_is_replaced():
    config = TrainConfig(total_steps=10, max_lr=1e-3)
    assert config.lr(10) == pytest.approx(1e-4)
    assert replace(config, max_lr=1e-1).lr(10) == pytest.approx(1e-2)
    assert replace(config, max_lr=1e-5).lr(10) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"checkpoint_every": 3}, r"need a folder: set TrainConfig\.out"),
        ({"weights_every": 3}, r"need a folder: set TrainConfig\.out"),
        ({"weight_decay": math.nan}, "weight_decay=nan"),
        ({"weight_decay": -1.0}, "weight_decay=-1"),
        ({"betas": (0.9, 1.5)}, "betas="),
        ({"eps": math.nan}, "eps=nan"),
        ({"eps": 0.0}, "eps=0"),
        ({"max_lr": 0.0}, "max_lr=0"),
        ({"eval_every": 1.5}, "eval_every=1.5"),
        ({"warmup_steps": 0.5}, "warmup_steps=0.5 must be a whole number"),
    ],
)
def test_settings_that_would_ruin_a_run_are_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **changed)
