"""The Chinese README and manual say the same as the English ones, in the same order, in Chinese punctuation.

The two pages of a pair are cut at their headings. The parts are then compared in pairs, by what needs no translation:
code blocks, code within sentences, links, pictures and numbers. What fails names the part, and what the Chinese page
must change.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tinytrain.course.series import CHINESE, ENGLISH

ROOT = Path(__file__).resolve().parents[1]
HAN = "\u4e00-\u9fff"
WIDE = "，。、；：？！（）《》“”"  # Chinese punctuation
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
README_HEADINGS = {  # in order, with their marks
    "# tinytrain": "# tinytrain",
    "## Start": "## 快速开始",
    "## The notebooks": "## Notebook 目录",
    "## Measured, and not as one reads": "## 实测结果与通常的说法不同",
    "## Your own model": "## 换成自己的模型",
    "## Train without Jupyter": "## 不用 Jupyter 训练",
    "## How fast": "## 速度",
    "## Other ways to start": "## 其他启动方式",
    "### The same without make": "### 不用 make",
    "### Elsewhere": "### 在别处运行",
    "### Tried with": "### 试过的环境",
    "## Data": "## 数据",
    "## Part of the tests": "## 只跑一部分测试",
    "## When something does not work": "## 遇到问题时",
    "## The house": "## 代码结构",
}
MANUAL_HEADINGS = {
    "# The command line": "# 命令行",
    "## Is a model healthy?": "## 模型正常吗？",
    "## Going on": "## 断点续训",
    "## In several processes": "## 多进程训练",
    "## Your own text": "## 用自己的文本",
    "## Tokenizers": "## 分词器",
    "## Text larger than memory": "## 内存装不下的文本",
    "## What will a run need?": "## 训练要多少资源？",
    "## On a GPU": "## 用 GPU 训练",
}
MANUAL, MANUAL_ZH = "docs/command_line.md", "docs/command_line.zh-CN.md"
TIMES = {"million": 1_000_000, "万": 10_000}
# Only one of the two pages has these: each links to the other, and the map of all files is English alone.
TO_THE_OTHER = {"README.zh-CN.md", "README.md", "README.md#the-house", "command_line.zh-CN.md", "command_line.md"}
MAP = re.compile(r"<!-- house:start -->.*?<!-- house:end -->", re.DOTALL)


def parts(page: str) -> list[tuple[str, str]]:
    """A page as (heading with its marks, text below it), in order. A ``#`` in a code block is no heading.

    >>> parts("# a\\none\\n## b\\n```bash\\n# c\\n```\\n")
    [('# a', 'one\\n'), ('## b', '```bash\\n# c\\n```\\n')]
    """
    blocks = FENCE.findall(page)
    pieces = re.split(r"^(#+ .*)\n", FENCE.sub("\0", page), flags=re.MULTILINE)
    assert pieces[0] == "", "a page begins with its title"
    found, rest = [], iter(blocks)
    for heading, text in zip(pieces[1::2], pieces[2::2], strict=True):
        whole = re.sub("\0", lambda _: "```{}\n{}```".format(*next(rest)), text)
        found.append((heading, whole))
    return found


def code_blocks(text: str) -> list[str]:
    """Language and lines of each code block, without comments, which may be translated.

    >>> code_blocks("```bash\\nmake lab   # all of it\\n```\\n")
    ['bash\\nmake lab']
    """
    blocks = [f"{language}\n{code}".rstrip() for language, code in FENCE.findall(text)]
    return [re.sub(r"[ \t]*(?:^|(?<=[ \t]))#.*", "", block, flags=re.MULTILINE) for block in blocks]


def inline_code(text: str) -> list[str]:
    return sorted(set(re.findall(r"`([^`\n]+)`", FENCE.sub("", text))))


def links(text: str) -> list[str]:
    """Where links lead, sorted: two languages may order a sentence in two ways."""
    found = [target for picture, _, target in LINK.findall(FENCE.sub("", text)) if not picture]
    return sorted(target for target in found if target not in TO_THE_OTHER)


def pictures(text: str) -> list[str]:
    return [target for picture, _, target in LINK.findall(text) if picture]


def words(text: str) -> str:
    """The text without code, marks, and what links lead to."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    return LINK.sub(r"\2", re.sub(r"`[^`\n]+`", "`", text)).replace("**", "")


def numbers(text: str) -> list[str]:
    """The numbers of a text, sorted; FP16's 16 is none.

    >>> numbers("about 5 million, FP16"), numbers("约 500 万，FP16"), numbers("3.0.0 or 4,096")
    (['5000000'], ['5000000'], ['3.0.0', '4096'])
    """
    found = re.findall(r"(?<![A-Za-z0-9.])(\d+(?:,\d{3})*(?:\.\d+)*)(?: (million|万))?", words(text))
    plain = ((number.replace(",", ""), unit) for number, unit in found)
    return sorted(f"{float(number) * TIMES[unit]:.0f}" if unit else number for number, unit in plain)


def tables(text: str) -> list[list[list[str]]]:
    """Each table as rows of cells, the line under its head left out."""
    found = re.findall(r"(?:^\|.*\|$\n?)+", FENCE.sub("", text), re.MULTILINE)
    rows = [[re.split(r" \| ", line.strip("| ")) for line in table.splitlines()] for table in found]
    return [[row for row in table if set("".join(row)) - set("-|")] for table in rows]


def table_numbers(text: str) -> list[str]:
    """Each cell as 'table, row, column: its numbers'."""
    return [
        f"table {t}, row {r}, column {c}: {', '.join(numbers(cell)) or 'no number'}"
        for t, table in enumerate(tables(text), 1)
        for r, row in enumerate(table)
        for c, cell in enumerate(row, 1)
    ]


def read(name: str) -> str:
    return MAP.sub("", (ROOT / name).read_text("utf-8"))


@dataclass(frozen=True)
class Pair:
    """A page in English and in Chinese, and their headings. Of what is in ``may_lack`` neither needs to have any."""

    ours: str
    theirs: str
    headings: dict[str, str]
    may_lack: frozenset[str] = frozenset()

    @property
    def parts(self):
        """(heading, text) of both pages; a heading that one page lacks is the first test's."""
        english, chinese = dict(parts(in_chinese(read(self.ours)))), dict(parts(read(self.theirs)))
        both = [(a, b) for a, b in self.headings.items() if a in english and b in chinese]
        return [((a, english[a]), (b, chinese[b])) for a, b in both]


PAIRS = (
    Pair(ENGLISH.readme, CHINESE.readme, README_HEADINGS),
    Pair(MANUAL, MANUAL_ZH, MANUAL_HEADINGS, may_lack=frozenset({"link", "picture"})),
)
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.theirs)


def in_chinese(english: str) -> str:
    """The English page as it links in Chinese: a Chinese page leads to the Chinese manual.

    >>> in_chinese("[it](docs/command_line.md)")
    '[it](docs/command_line.zh-CN.md)'
    """
    return english.replace(f"]({MANUAL})", f"]({MANUAL_ZH})")


def test_every_chinese_page_is_compared():
    found = [*ROOT.glob("*.zh-CN.md"), *ROOT.glob("docs/*.zh-CN.md")]
    there = sorted(path.relative_to(ROOT).as_posix() for path in found)
    assert there == sorted(pair.theirs for pair in PAIRS), "PAIRS must have every Chinese page"


@each_pair
def test_headings_agree_in_number_level_and_order(pair):
    """Each page has those of its pair, in their order, and nothing else."""
    for name, wanted in ((pair.ours, list(pair.headings)), (pair.theirs, [*pair.headings.values()])):
        there = [heading for heading, _ in parts(read(name))]
        new, gone = [h for h in there if h not in wanted], [h for h in wanted if h not in there]
        assert there == wanted, (
            f"{name} has {new} and lacks {gone}, or has its headings in another order. If {pair.ours} has changed, "
            f"change its headings here and {pair.theirs} in the same way"
        )
    levels = [[heading.split(" ")[0] for heading in both] for both in pair.headings.items()]
    assert all(ours == theirs for ours, theirs in levels), "two headings that are paired have two levels"


COMPARED = {
    "code block": code_blocks,
    "code in a sentence": inline_code,
    "link": links,
    "picture": pictures,
    "cell": table_numbers,
}


@each_pair
@pytest.mark.parametrize("what", COMPARED)
def test_what_needs_no_translation_is_the_same_under_each_heading(what, pair):
    """Comments in code are translated; within a sentence, code and links may stand in another order."""
    wrong = []
    for (ours, english), (theirs, chinese) in pair.parts:
        wanted, there = COMPARED[what](english), COMPARED[what](chinese)
        if wanted == there:
            continue
        lacking = [each for each in wanted if each not in there]
        excess = [each for each in there if each not in wanted]
        wrong.append(f"under {theirs!r} ({pair.ours}: {ours!r})")
        wrong += [f"  add the {what}: {each}" for each in lacking]
        wrong += [f"  {pair.ours} has no such {what}: {each}" for each in excess]
        wrong += ["  the same ones, in another order or number"] if not lacking and not excess else []
    assert not wrong, f"change {pair.theirs}:\n" + "\n".join(wrong)
    found = any(COMPARED[what](english) for (_, english), _ in pair.parts)
    assert found or what in pair.may_lack, f"no {what} was found: is the pattern old?"


@each_pair
def test_each_number_of_the_english_page_stands_in_the_chinese_one(pair):
    """Under the same heading. Chinese may write more of them in digits than English does."""
    wrong = []
    for (ours, english), (theirs, chinese) in pair.parts:
        there = numbers(chinese)
        wrong += [f"under {theirs!r} ({pair.ours}: {ours!r}): {n}" for n in numbers(english) if n not in there]
    assert not wrong, f"{pair.theirs} lacks these numbers:\n" + "\n".join(wrong)


@each_pair
def test_each_page_links_to_the_other_in_its_first_lines(pair):
    (ours, theirs), *_ = pair.headings.items()
    there, back = f"[中文]({Path(pair.theirs).name})", f"[English]({Path(pair.ours).name})"
    assert read(pair.ours).splitlines()[:3] == [ours, "", there], f"link to {pair.theirs}"
    assert read(pair.theirs).splitlines()[:3] == [theirs, "", back], f"link to {pair.ours}"


def test_the_link_to_the_map_leads_to_its_heading():
    anchors = {heading.lstrip("# ").lower().replace(" ", "-") for heading, _ in parts(read(ENGLISH.readme))}
    named = re.findall(r"\(README\.md#([^)]+)\)", read(CHINESE.readme))
    assert named and set(named) <= anchors, f"README.md has no heading for {sorted(set(named) - anchors)}"


def ascii_punctuation(text: str) -> list[str]:
    """Where ASCII punctuation follows or, for brackets and quotes, touches a Chinese character.

    >>> ascii_punctuation("快，稳. 用 `a`, 好(吗)"), ascii_punctuation("用 BF16（快），3.5 倍")
    (['稳.', '`,', '好(', '吗)'], [])
    """
    pattern = rf"[{HAN}{WIDE}`]\s?[,;:?!](?!\w)|[{HAN}]\.(?!\w)|,\s?[{HAN}]|[{HAN}{WIDE}][()\"']|[()\"'][{HAN}{WIDE}]"
    return re.findall(pattern, words(text))


def tight(text: str) -> list[str]:
    """Where a Chinese character touches a Latin letter, a digit or code.

    >>> tight("用GPU 训练 3次"), tight("用 GPU 训练 3 次，FP16")
    (['用G', '3次'], [])
    """
    return re.findall(rf"[{HAN}][A-Za-z0-9`]|[A-Za-z0-9`][{HAN}]", words(text))


def faults_by_line(find, name: str) -> list[str]:
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), read(name))
    return [f"line {n}: {found}" for n, line in enumerate(text.splitlines(), 1) if (found := find(line))]


@each_pair
def test_between_chinese_characters_stands_chinese_punctuation(pair):
    wrong = faults_by_line(ascii_punctuation, pair.theirs)
    assert not wrong, f"use {WIDE} in {pair.theirs}:\n" + "\n".join(wrong)


@each_pair
def test_a_space_parts_chinese_characters_from_latin_ones(pair):
    wrong = faults_by_line(tight, pair.theirs)
    assert not wrong, f"put a space between in {pair.theirs}:\n" + "\n".join(wrong)
