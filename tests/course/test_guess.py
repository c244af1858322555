import pytest

from tinytrain.course.guess import guess

CHOICES = {"a mask that leaks": "The loss says so.", "a rate too high": "Then it would swing."}


def test_each_choice_unfolds_its_judged_reply_and_the_truth_comes_last(shown):
    guess("What was done?", CHOICES, right="a mask that leaks", reveal="Line 12 lets every token see the next.")
    (output,) = shown.outputs
    text = output.data["text/markdown"]
    assert text.startswith("**What was done?**")
    assert "<summary>a mask that leaks</summary>\n\n**Yes.** The loss says so." in text
    assert "<summary>a rate too high</summary>\n\n**No.** Then it would swing." in text
    assert text.endswith("<summary><b>Reveal</b></summary>\n\nLine 12 lets every token see the next.\n\n</details>")
    assert text.count("<details>") == text.count("</details>") == 3


def test_in_a_terminal_the_answer_stands_under_the_choices(shown):
    guess("What was done?", CHOICES, right="a rate too high", reveal="lr was 10.")
    plain = shown.outputs[0].data["text/plain"].splitlines()
    assert plain[0] == "What was done?" and plain[-1] == "  (Reveal: a rate too high. lr was 10.)"


@pytest.mark.parametrize(
    ("choices", "right", "message"),
    [
        ({"one": "reply"}, "one", "two choices or more"),
        (CHOICES, "something else", r"right='something else' must be one of"),
        ({"one": "reply", "two": " "}, "one", "'two' has no reply"),
    ],
)
def test_what_cannot_be_asked_is_refused(choices, right, message):
    with pytest.raises(ValueError, match=message):
        guess("What?", choices, right=right, reveal="nothing")
