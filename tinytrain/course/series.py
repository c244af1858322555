"""The lessons of the series, in order, and the maps that are made from them, one for the README of each language."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Lesson:
    """One notebook: its number, the name in its file name, and the question it answers, in English and in Chinese."""

    number: int
    name: str
    question: str
    question_zh: str

    @property
    def file(self) -> str:
        return f"{self.number:02d}_{self.name}.ipynb"


SERIES = tuple(
    Lesson(number, name, question, question_zh)
    for number, (name, question, question_zh) in enumerate(
        [
            ("start_here", "Does everything work, and what are we training?", "环境都正常吗？我们要训练的是什么？"),
            ("loss", "Why is this loss wrong?", "这个 loss 为什么不对？"),
            ("optimizer", "What does AdamW do that Adam does not?", "AdamW 比 Adam 多做了什么？"),
            ("warmup", "Is warmup optional?", "预热可以省掉吗？"),
            ("loop", "What belongs in a training step, and in what order?", "一个训练步里该做哪些事，按什么顺序？"),
            ("batches", "How much of my batch is air?", "我的 batch 里有多少水分？"),
            ("accumulation", "Is eight times four really thirty-two?", "八乘四真的等于三十二吗？"),
            ("precision", "BF16 or FP16, and what does the scaler do?", "用 BF16 还是 FP16？scaler 又做了什么？"),
            ("checkpoints", "Can I pull the plug?", "训练到一半，可以直接拔电源吗？"),
            ("ddp", "Do two processes train the same model as one?", "两个进程训出来的模型，和一个进程的一样吗？"),
            ("curves", "What is this curve telling me?", "这条曲线说明了什么？"),
            ("nan_lab", "Where did the NaN come from?", "NaN 是从哪里来的？"),
            ("experiment", "Can I run the whole thing once, properly?", "能把整套流程规规矩矩跑一遍吗？"),
            ("scaling_up", "What changes at 350M and 7B?", "到了 350M 和 7B，哪些东西会变？"),
            ("your_own_model", "Does all this work on my model?", "换成我自己的模型，这些还管用吗？"),
        ]
    )
)


@dataclass(frozen=True)
class Language:
    """A README's file name and the words of its map; ``question`` is the field of ``Lesson`` that the map shows."""

    readme: str
    question: str
    head: str
    to_come: str


ENGLISH = Language(readme="README.md", question="question", head="question", to_come=" (to come)")
CHINESE = Language(readme="README.zh-CN.md", question="question_zh", head="问题", to_come="（待写）")
LANGUAGES = (ENGLISH, CHINESE)


def series_map(folder: str | Path, link_prefix: str = "", language: Language = ENGLISH) -> str:
    """A Markdown table of all lessons. Those whose notebook lies in ``folder`` are links; the others are to come."""
    rows = [f"| notebook | {language.head} |", "|---|---|"]
    for lesson in SERIES:
        title = f"{lesson.number:02d} {lesson.name.replace('_', ' ')}"
        written = (Path(folder) / lesson.file).is_file()
        cell = f"[{title}]({link_prefix}{lesson.file})" if written else f"{title}{language.to_come}"
        rows.append(f"| {cell} | {getattr(lesson, language.question)} |")
    return "\n".join(rows)


def update_readmes(root: str | Path, folder: str | Path) -> None:
    """Write the map of each language between the two ``series`` marks of its README in ``root``."""
    for language in LANGUAGES:
        update_readme(Path(root) / language.readme, folder, language)


def update_readme(readme: str | Path, folder: str | Path, language: Language = ENGLISH) -> None:
    """Write the map between one README's two ``series`` marks."""
    start, end = "<!-- series:start -->", "<!-- series:end -->"
    text = Path(readme).read_text(encoding="utf-8")
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"{readme} must hold the marks {start} and {end} once each")
    head, tail = text.split(start)[0], text.split(end)[1]
    table = series_map(folder, f"{Path(folder).name}/", language)
    Path(readme).write_text(f"{head}{start}\n{table}\n{end}{tail}", encoding="utf-8")
