"""The rules for English, as data and as a check: ``python -m tests.english PATH…`` lists each sentence that breaks one.

The rules hold for docs, docstrings, comments, errors, help texts and pages. CONTRIBUTING.md explains them.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST = 25
"""Words of a sentence. Code, links and paths count as one word each."""

OPENINGS = (
    *("who", "whose", "what", "whoever", "whatever", "whichever", "where", "those"),
    *("nobody", "somebody", "anybody", "everybody"),
)
"""Words that open no sentence. A question may open with one."""

BANNED = {
    "whoever": "name the subject",
    "one who": "name the subject",
    "those who": "name the subject",
    "he who": "name the subject",
    "nobody": "name the subject: no client, no gateway",
    "somebody": "name the subject: a client, an operator",
    "anybody": "name the subject: any caller",
    "everybody": "name the subject: all callers",
    "in vain": "without effect, or say what failed",
    "goes round": "bypasses",
    "went round": "bypassed",
    "go round": "bypass",
    "going round": "bypassing",
    "patience": "timeout",
    "comes again": "is retried, or is repeated",
}
"""Words and phrases that no sentence contains, and what to say."""

ALLOWED = {
    "This copy request is illegal because it is trying to copy an object to itself without changing the object's "
    "metadata, storage class, website redirect location or encryption attributes.": "AWS's own message",
}
"""Sentences that break a rule, and the reason why they may."""


class Sentence(NamedTuple):
    """A sentence, and the line on which its text begins."""

    line: int
    text: str


class Flaw(NamedTuple):
    """A sentence that breaks a rule."""

    line: int
    rule: str
    sentence: str


_CODE = re.compile(r"``[^`]+``|`[^`\n]+`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ADDRESS = re.compile(r"\bhttps?://\S+|(?<![\w.])[\w.{}*-]*/[\w./{}*-]+")
_ASIDE = re.compile(r"\((?:see |RFC|section|docs/)[^()]*\)")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|No)\.(?=\s)")
# Names that open a sentence in lower case.
_NAMES = "aiohttp|asyncpg|boto3|curl|etcd|httpx|kazoo|moto|nginx|orjson|psycopg|rclone|uvicorn"
_END = re.compile(rf"(?<=[.!?])[\"')\]*_”’]*\s+(?=[\"'(*_“‘]*(?:[A-Z0-9\x00…\[]|(?:{_NAMES})\b))")
_BANNED = re.compile(rf"\b(?:{'|'.join(BANNED)})\b")
_WORD = re.compile(r"[^\W_][\w'’.,:-]*")


def judge(sentence: str) -> Iterator[str]:
    """Yield the rules that a sentence breaks."""
    if sentence in ALLOWED:
        return
    words = _WORD.findall(_simplified(sentence))
    if not words:
        return
    if words[0].strip(".,:").lower() in OPENINGS and not sentence.rstrip(")*_").endswith("?"):
        yield f"opens with {words[0]!r}: name the subject"
    plain = " ".join(words).lower()
    for phrase in dict.fromkeys(_BANNED.findall(plain)):
        yield f"{phrase!r}: {BANNED[phrase]}"
    if len(words) > LONGEST:
        yield f"{len(words)} words, at most {LONGEST}"


def _simplified(text: str) -> str:
    text = _LINK.sub(r"\1", _ASIDE.sub("", text))
    return _ADDRESS.sub("address", _CODE.sub("code", text))


def sentences(line: int, text: str) -> Iterator[Sentence]:
    """Split a paragraph that begins on ``line``."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\x00{len(kept) - 1}\x00"

    # Explanations of fields stand between semicolons: ``name``: …; ``other``: …
    masked = _ABBREVIATION.sub(lambda match: match[1] + "\x01", _CODE.sub(keep, re.sub(r";(\s+`)", r".\1", text)))
    for part in _END.split(re.sub(r"\s+", " ", masked).strip()):
        whole = re.sub("\x00(\\d+)\x00", lambda match: kept[int(match[1])], part).replace("\x01", ".").strip()
        if whole:
            yield Sentence(line, whole)


def paragraphs(line: int, text: str) -> Iterator[Sentence]:
    """Split text of several paragraphs, lists and ``Terms:`` into sentences."""
    block: list[str] = []
    begin = line
    for number, row in enumerate([*text.splitlines(), ""], line):
        # An item of a list, or a term with its explanation behind a gap.
        item = re.match(r"\s*(?:[-*•]|\d+\.)\s+|\s{2,}\S+\s{2,}(?=\S)", row)
        if (not row.strip() or item) and block:
            yield from sentences(begin, "\n".join(block))
            block = []
        if row.strip():
            if not block:
                begin = number
            block.append("" if re.search("[├└│┌─═▼]", row) else row[item.end() :] if item else row)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def of_markdown(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page without its code."""
    text = re.sub(
        r"^( *)(```|~~~).*?^\1\2$", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    lines: list[str] = []
    for number, row in enumerate(text.splitlines(), 1):
        if row.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", row.strip().strip("|")):
                if not re.fullmatch(r"[\s:-]*", cell):
                    # A cell lists things between semicolons.
                    yield from sentences(number, re.sub(r"; (\w)", lambda match: ". " + match[1].upper(), cell))
            lines.append("")
        elif row.startswith("#"):
            yield from sentences(number, row.lstrip("# "))
            lines.append("")
        elif row.startswith("    ") and not (lines and lines[-1].strip()):
            lines.append("")
        else:
            lines.append(re.sub(r"^\s*>\s?", "", row))
    yield from paragraphs(1, "\n".join(lines))


def of_python(text: str, *, strings: bool) -> Iterator[Sentence]:
    """Yield the sentences of docstrings and comments and, with ``strings``, of string literals that read as prose."""
    nodes = list(ast.walk(ast.parse(text)))
    documented: set[int] = set()
    for node in nodes:
        for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    documented.add(id(statement.value))
                    yield from paragraphs(statement.lineno, re.sub(r"^ +", "", value, flags=re.MULTILINE))
    if strings:
        inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        other = documented | inside
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else "value" for one in node.values]
                yield from _prose(node.lineno, "".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in other:
                yield from _prose(node.lineno, node.value)
    yield from _comments(text)


def _prose(line: int, text: str) -> Iterator[Sentence]:
    if re.match(r"[A-Z]", text) and "(?P<" not in text and len(text.split()) >= 4 and re.search(r"[.!?]\s*$", text):
        yield from paragraphs(line, text)


def _comments(text: str) -> Iterator[Sentence]:
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if block and not (alone and token.start[0] == last + 1):
                yield from paragraphs(begin, "\n".join(block))
                block = []
            if not block:
                begin = token.start[0]
            last = token.start[0] if alone else 0
            block.append(re.sub(r"^#[:!]? ?|\b(?:noqa|type: ignore|fmt: \w+|pragma)\b.*", "", token.string))
    if block:
        yield from paragraphs(begin, "\n".join(block))


def of_lines(text: str, mark: str) -> Iterator[Sentence]:
    """Yield the sentences of comments that begin with ``mark``: SQL, TOML, YAML, shell."""
    rows = []
    for row in text.splitlines():
        match = re.match(rf"\s*{mark}+(?! ?name: \w+$) ?(.*)", row)
        # A setting that is commented out is no prose.
        setting = match and re.match(r"\[+[\w.]+\]+|[\w.-]+ = ", match[1])
        rows.append(match[1] if match and not setting else "")
    yield from paragraphs(1, "\n".join(rows))


def of_template(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page's template, without tags and expressions."""

    text = re.sub(r"<(script|style|svg)\b.*?</\1>|\{#.*?#\}|<!--.*?-->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "value", text, flags=re.DOTALL)
    text = re.sub(r"\{%.*?%\}", lambda match: "\n" * (match[0].count("\n")) or " ", text, flags=re.DOTALL)
    text = re.sub(r"</?(?:a|b|code|em|strong|time|span|i|abbr)\b[^>]*>", " ", text)
    text = re.sub(r"<[^>]*>", lambda match: "\n\n" if "\n" not in match[0] else _blank(match), text)
    for line, row in enumerate(text.splitlines(), 1):
        if row.strip():
            yield from sentences(line, row)


def read(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a file, by its kind; none of a kind that has no prose."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from of_markdown(text)
    elif path.suffix == ".py":
        yield from of_python(text, strings="gateway" in path.parts)
    elif path.suffix == ".sql":
        yield from of_lines(text, "--")
    elif path.suffix == ".html":
        yield from of_template(text)
    elif path.suffix in {".toml", ".yml", ".yaml", ".sh"} or path.name in {"Makefile", "run"}:
        yield from of_lines(text, "#")


def flaws(path: Path) -> list[Flaw]:
    """Return what is wrong in one file, in its order."""
    return [Flaw(one.line, rule, one.text) for one in read(path) for rule in judge(one.text)]


def files(path: Path) -> Iterator[Path]:
    """Yield the files below a folder, or the file itself."""
    if path.is_file():
        yield path
        return
    for one in sorted(path.rglob("*")):
        skipped = {"vendor", "node_modules", "__pycache__", ".venv", "rows", "recorded"} & set(one.parts)
        if one.is_file() and not skipped and one.suffix in {".md", ".py", ".sql", ".html", ".toml", ".yml", ".sh"}:
            yield one


def main(arguments: list[str]) -> int:
    total = 0
    for path in (one for argument in arguments for one in files(Path(argument))):
        for flaw in flaws(path):
            total += 1
            print(f"{path}:{flaw.line}: {flaw.rule}: {flaw.sentence}")
    print(f"{total} flaws", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
