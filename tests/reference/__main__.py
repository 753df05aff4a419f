"""Write the pages in docs/reference."""

from tests.reference.pages import FOLDER, PAGES

for name, make in PAGES.items():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / name).write_text(make())
