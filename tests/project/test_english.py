"""The prose of the project keeps the rules for English, and the check finds each way to break them."""

from pathlib import Path

import pytest

from tests import ROOT, english

AREAS = sorted(
    str(path.relative_to(ROOT))
    for folder in (ROOT, ROOT / "gateway", ROOT / "docs", ROOT / "tests")
    for path in folder.iterdir()
    if (path.is_dir() or path.suffix in {".md", ".py", ".toml", ".yml", ".sql"} or path.name == "Makefile")
    and not path.name.startswith((".", "__pycache__"))
    and path.name not in {"gateway", "docs", "tests", "node_modules", "requirements", "build"}
    and any(english.files(path))
)


@pytest.mark.parametrize("area", AREAS)
def test_the_prose_keeps_the_rules(area: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{flaw.line}: {flaw.rule}: {flaw.sentence}"
        for path in english.files(ROOT / area)
        for flaw in english.flaws(path)
    ]
    assert not found, "\n" + "\n".join(found)


LONG = " ".join(["word"] * 26) + "."


@pytest.mark.parametrize(
    ("sentence", "flawed"),
    [
        ("Whoever writes it proves its token.", True),
        ("Who writes proves its token.", True),
        ("Where it is absent, the default holds.", True),
        ("Those are kept.", True),
        ("What happens if the lease runs out?", False),
        ("The lock service grants it to nobody.", True),
        ("A client waits in vain for the answer.", True),
        ("The wheel goes round the gateway.", True),
        ("The batch waits with patience.", True),
        (LONG, True),
        (" ".join(["Word"] * 25) + ".", False),
        ("The `a b c` call takes " + " ".join(["`x y z`"] * 15) + ".", False),
        ("The gateway refuses a stale token.", False),
        ("A client whose lease ran out stops.", False),
        ("The table where it stands is locked.", False),
    ],
)
def test_a_sentence_is_judged(sentence: str, flawed: bool) -> None:  # noqa: FBT001
    assert bool(list(english.judge(sentence))) is flawed


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.md", "# Title\n\nOne. Two, e.g. three v1.2.\n\n```\nNobody.\n```\n\n- four\n- five\n", 5),
        ("a.md", "| Head | Cell one. Cell two. |\n|---|---|\n", 3),
        ("a.py", '"""A module. It has two."""\n\nX = 1\n"""A note."""\n# A comment\n# that goes on.\n', 4),
        ("gateway/a.py", 'raise ValueError("The token is stale. " f"Take {lock} anew.")\n', 2),
        ("gateway/a.py", 'NAME = "not prose"\nOTHER = "Content-Type"\n', 0),
        ("a.sql", "-- name: read\n-- Read a row. Lock it.\nSELECT 1\n", 2),
        ("a.html", "<p>One <b>bold</b> {{ value }} sentence.</p>\n<script>Nobody.</script>\n", 1),
        ("a.toml", "# One line.\n# Another one.\nkey = 1\n", 2),
    ],
)
def test_sentences_are_found_in_every_kind_of_file(tmp_path: Path, name: str, text: str, expected: int) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert len(list(english.read(path))) == expected, list(english.read(path))


def test_code_at_the_start_of_a_sentence_ends_the_one_before() -> None:
    found = [one.text for one in english.sentences(1, "It raises ``A.b``. ``c`` says why. See `d.py` for it.")]
    assert found == ["It raises ``A.b``.", "``c`` says why.", "See `d.py` for it."]
