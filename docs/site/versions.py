"""The list of versions of the site: ``python docs/site/versions.py FOLDER`` writes FOLDER/index.html.

Each folder in FOLDER is the site of one version, as ``make docs-release`` puts it there. The newest comes first.
"""

import sys
from html import escape
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fencing gateway: versions of the documentation</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.6 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem; padding: 0 1rem }}
</style>
</head>
<body>
<main>
<h1>Fencing gateway</h1>
<p>The documentation of each version:</p>
<ul>
{items}
</ul>
</main>
</body>
</html>
"""


def main(folder: Path) -> None:
    """Write the list of the versions in a folder."""
    versions = sorted((path.parent.name for path in folder.glob("*/searchindex.js")), key=_order, reverse=True)
    items = "\n".join(f'<li><a href="{escape(one)}/docs/README.html">{escape(one)}</a></li>' for one in versions)
    (folder / "index.html").write_text(PAGE.format(items=items))


def _order(version: str) -> list[tuple[bool, int, str]]:
    """Return the key of a version: 1.10 is newer than 1.9, and 1.0.0 is newer than 1.0.0rc1."""
    parts = version.replace("rc", ".rc.").split(".")
    numbers = [(part != "rc", int(part) if part.isdigit() else 0, part) for part in parts if part]
    return [*numbers, (True, 0, "")]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
