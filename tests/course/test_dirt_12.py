import random

import pytest

from tinytrain.course.dirt_12 import (
    LOOKS,
    compared,
    dirt_alone,
    dirtied,
    in_wrong_order,
    scrambled,
    share_of_dirt,
    speeches,
)
from tinytrain.course.lesson_12 import parts, tokenizer_of

CHARACTERS = 6_000


def test_a_scrambled_speech_keeps_its_letters_and_its_spaces():
    speech = "Now is the winter\nof our discontent"
    mixed = scrambled(speech, random.Random(0))
    assert mixed != speech and sorted(mixed) == sorted(speech)
    assert [i for i, c in enumerate(mixed) if c.isspace()] == [i for i, c in enumerate(speech) if c.isspace()]


def test_the_chosen_speeches_are_always_the_same_and_as_many_as_asked():
    assert speeches(CHARACTERS, 0.3) == speeches(CHARACTERS, 0.3)
    many = [bad for _, bad in speeches(200_000, 0.2)]
    assert sum(many) / len(many) == pytest.approx(0.2, abs=0.03)
    few, more = ([bad for _, bad in speeches(CHARACTERS, share)] for share in (0.1, 0.4))
    assert all(b for a, b in zip(few, more, strict=True) if a)


def test_clean_text_is_the_text_and_dirty_text_differs_in_its_dirt_alone():
    tokenizer = tokenizer_of()
    assert tokenizer.decode(dirtied(CHARACTERS, 0.0).ids) == parts()[0].text[:CHARACTERS]
    dirty = tokenizer.decode(dirtied(CHARACTERS, 0.3).ids)
    clean = [speech for speech, bad in speeches(CHARACTERS, 0.3) if not bad]
    assert dirty != parts()[0].text[:CHARACTERS] and all(speech in dirty for speech in clean)


def test_dirt_alone_is_the_dirt_of_the_text_and_with_another_seed_other_dirt_of_the_same_letters():
    tokenizer = tokenizer_of()
    dirty = tokenizer.decode(dirtied(CHARACTERS, 0.3).ids)
    seen, new = (tokenizer.decode(dirt_alone(CHARACTERS, 0.3, seed).ids) for seed in (1, 2))
    assert all(speech in dirty for speech in seen.split("\n\n"))
    assert seen != new and sorted(seen) == sorted(new)
    assert 0.3 < share_of_dirt(200_000, 0.2) / 0.2 < 2


def test_the_arms_of_a_comparison_differ_in_what_was_asked_for():
    small = {"seed": 1, "steps": 25, "characters": CHARACTERS}
    first, again = compared(**small), compared(**small)
    assert first == again and set(first["evals"]) == set(LOOKS)
    for change in ({"dirt": 0.3}, {"d_model": 72}, {"lr_times": 1.25}, {"warmup": 0.4}, {"length": 0.8}):
        assert compared(**(small | change))["held_out"] != first["held_out"], change
    looked = compared(**small, look_at_dirt=0.3)
    assert looked["held_out"] == first["held_out"] and looked["dirt_seen"] != looked["dirt_new"]


def test_pairs_in_another_order_than_at_the_end_are_counted():
    one, two, three = ({"evals": {0.5: now}, "held_out": end} for now, end in ((1.0, 3.0), (2.0, 2.0), (3.0, 4.0)))
    assert in_wrong_order([(one, two), (one, three), (two, three)], 0.5) == pytest.approx(1 / 3)
    assert in_wrong_order([(two, one)], 0.5) == 1 and in_wrong_order([(one, three)], 0.5) == 0
