"""The documentation as a site: Sphinx reads the Markdown pages of this repository as they are.

``docs/README.md`` is the navigation: its headings are the parts of the site, its links their pages. A link to a file
that is no page, such as a module, becomes a download. Sphinx needs neither a network nor a second list of pages.
"""

import hashlib
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
NAVIGATION = "docs/README"

project = "Fencing gateway"
author = copyright = "the authors of the fencing gateway"  # noqa: A001 - Sphinx reads this name
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
root_doc = NAVIGATION
include_patterns = [
    *("*.md", "docs/*.md", "docs/**/*.md"),
    *("clients/*/README.md", "examples/README.md", "deploy/**/README.md", "tests/README.md"),
]
exclude_patterns = [".*", "**/node_modules", "build", "dist", "demo-data"]
nitpicky = True
# Anchors are as forges make them.
myst_heading_anchors = 4
# Foreign SQL and the shell in the examples: what the highlighter cannot read is shown plain.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"Fencing gateway {release}"
html_favicon = "../../gateway/web/static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "index.html"}
html_copy_source = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
# ``make docs-release`` sets it: there are other versions beside this one then.
html_context = {"released": False}
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "versions.html", "sidebar/search.html"),
        *("sidebar/scroll-start.html", "sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]+)?\)")


def _adapt(_app: Sphinx, name: str, source: list[str]) -> None:
    """Adapt what a page has for readers of a forge."""
    page = ROOT / f"{name}.md"
    source[0] = _LINK.sub(lambda link: _adapted(page, link), source[0])
    if name == NAVIGATION:
        source[0] += "".join(_contents(part) for part in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:])
    elif re.match(r"docs/decisions/\d", name):
        # Pages that another page lists, and that the navigation leaves out.
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def _contents(part: str) -> str:
    """Return the table of contents of one part of the navigation."""
    links = re.findall(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", part, re.MULTILINE)
    entries = [f"{text} </{posixpath.normpath(f'docs/{page}')}>" for text, page in links]
    heading = part.splitlines()[0]
    return "\n".join(["\n\n```{toctree}", ":hidden:", f":caption: {heading}", *entries, "```\n"])


def _adapted(page: Path, link: re.Match[str]) -> str:
    """Return a link. One that is called after a file gets the title of the page or section.

    A link to a folder becomes one to its README, or text without a link if there is none.
    """
    text, target, anchor = link.groups(default="")
    path = (page.parent / target).resolve()
    if path.is_dir():
        return f"[{text}]({target.rstrip('/')}/README.md)" if (path / "README.md").exists() else text
    return f"[]({target}{anchor})" if text == path.name and path.suffix == ".md" else link[0]


def _make_accessible(_app: Sphinx, _name: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """Add what a screen reader and a keyboard need: levels of headings, and code and tables that scroll by keys."""
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx call the extension that this file is."""
    # All pages are read again after a change of this file.
    app.add_config_value("this_file", hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), "env", str)
    app.connect("source-read", _adapt)
    app.connect("html-page-context", _make_accessible, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
