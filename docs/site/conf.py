"""The documentation as a site: Sphinx reads the Markdown pages of this repository as they are.

``docs/README.md`` is the navigation: its headings are the parts of the site, its links their pages. A link to a file that
is no page, such as a module, becomes a download. Decision 095 has the reasons.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
NAVIGATION = "docs/README"

project = "Fencing gateway"
author = copyright = "the authors of the fencing gateway"  # noqa: A001 - Sphinx reads this name
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
root_doc = NAVIGATION
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "clients/*/README.md", "examples/*.md", "examples/**/*.md", "tests/README.md"]
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
    "**": ["sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html"]
    + ["sidebar/navigation.html", "sidebar/scroll-end.html"]
}


_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)\)")


def _adapt(_app: Sphinx, name: str, source: list[str]) -> None:
    """Adapt what a page has for readers of a forge."""
    page = ROOT / f"{name}.md"
    source[0] = _LINK.sub(lambda link: _to_folder(page, link), source[0])
    if name == NAVIGATION:
        source[0] += "".join(_contents(part) for part in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:])
    elif re.match(r"docs/decisions/\d|examples/.+/", name):
        # Pages that another page lists, and that the navigation leaves out.
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def _contents(part: str) -> str:
    """Return the table of contents of one part of the navigation."""
    links = re.findall(r"^- \[[^\]]+\]\(([^)#]+)\.md\)", part, re.MULTILINE)
    pages = [link.removeprefix("../") if link.startswith("../") else f"docs/{link}" for link in links]
    entries = "\n".join(f"/{page}" for page in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {part.splitlines()[0]}\n{entries}\n```\n"


def _to_folder(page: Path, link: re.Match[str]) -> str:
    """Return a link. A link to a folder becomes one to its README, or text without a link if there is none."""
    text, target = link.groups()
    folder = (page.parent / target).resolve()
    if not folder.is_dir():
        return link[0]
    return f"[{text}]({target.rstrip('/')}/README.md)" if (folder / "README.md").exists() else text


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx call the extension that this file is."""
    app.connect("source-read", _adapt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
