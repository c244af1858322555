"""The lessons of the series, in order, and the map that is made from them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lesson:
    """One notebook: its number, the name in its file name, and the question it answers."""

    number: int
    name: str
    question: str

    @property
    def file(self) -> str:
        return f"{self.number:02d}_{self.name}.ipynb"


SERIES = tuple(
    Lesson(number, name, question)
    for number, (name, question) in enumerate(
        [
            ("start_here", "Does everything work, and what are we training?"),
            ("loss", "Why is this loss wrong?"),
            ("optimizer", "What does AdamW do that Adam does not?"),
            ("warmup", "Is warmup optional?"),
            ("loop", "What belongs in a training step, and in what order?"),
            ("batches", "How much of my batch is air?"),
            ("accumulation", "Is eight times four really thirty-two?"),
            ("precision", "BF16 or FP16, and what does the scaler do?"),
            ("checkpoints", "Can I pull the plug?"),
            ("ddp", "Do two processes train the same model as one?"),
            ("curves", "What is this curve telling me?"),
            ("nan_lab", "Where did the NaN come from?"),
            ("experiment", "Can I run the whole thing once, properly?"),
            ("scaling_up", "What changes at 350M and 7B?"),
            ("your_own_model", "Does all this work on my model?"),
        ]
    )
)


def series_map(folder: str | Path, link_prefix: str = "") -> str:
    """A Markdown table of all lessons. Those whose notebook lies in ``folder`` are links; the others are to come."""
    rows = ["| notebook | question |", "|---|---|"]
    for lesson in SERIES:
        title = f"{lesson.number:02d} {lesson.name.replace('_', ' ')}"
        written = (Path(folder) / lesson.file).is_file()
        cell = f"[{title}]({link_prefix}{lesson.file})" if written else f"{title} (to come)"
        rows.append(f"| {cell} | {lesson.question} |")
    return "\n".join(rows)


def update_readme(readme: str | Path, folder: str | Path) -> None:
    """Write the map between the README's two ``series`` marks."""
    start, end = "<!-- series:start -->", "<!-- series:end -->"
    text = Path(readme).read_text(encoding="utf-8")
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"{readme} must hold the marks {start} and {end} once each")
    head, tail = text.split(start)[0], text.split(end)[1]
    table = series_map(folder, f"{Path(folder).name}/")
    Path(readme).write_text(f"{head}{start}\n{table}\n{end}{tail}", encoding="utf-8")
