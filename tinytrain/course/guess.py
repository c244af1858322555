"""A question with answers to choose from: each unfolds what it deserves to be told, and the last one the truth.

It is made of folds alone, with no kernel behind it, so it works in a saved notebook and on a web page as well.
"""

from collections.abc import Mapping

from IPython.display import display

from tinytrain.course.cells import folded

TRUTH = "Reveal"


def guess(question: str, choices: Mapping[str, str], *, right: str, reveal: str) -> None:
    """Show ``question`` and its ``choices``: an answer to the reply that it unfolds. All text is Markdown.

    ``right`` is the choice that is right; its reply begins with "Yes.", all others with "No.". ``reveal`` is
    unfolded last, when the reader gives up or is done. In a terminal the question and the choices are printed, and
    the answer under them.

    Raises ``ValueError`` for fewer than two choices, a choice without a reply, and a ``right`` that is none of them.
    """
    if len(choices) < 2 or right not in choices:
        raise ValueError(f"guess: right={right!r} must be one of two choices or more, given are {list(choices)}")
    if empty := [choice for choice, reply in choices.items() if not reply.strip()]:
        raise ValueError(f"guess: {empty[0]!r} has no reply; say what speaks for it or against it")
    told = {choice: f"**{'Yes' if choice == right else 'No'}.** {reply}" for choice, reply in choices.items()}
    folds = [folded(choice, reply) for choice, reply in told.items()]
    markdown = "\n\n".join([f"**{question}**", *folds, folded(f"<b>{TRUTH}</b>", reveal)])
    plain = "\n".join([question, *(f"  - {choice}" for choice in choices), f"  ({TRUTH}: {right}. {reveal})"])
    display({"text/markdown": markdown, "text/plain": plain}, raw=True)
