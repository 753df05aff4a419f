"""Write the pages in docs/reference, and the pictures in docs/pictures."""

from docs.generator import pages, pictures

for folder in (pages.FOLDER, pictures.FOLDER):
    folder.mkdir(exist_ok=True)
for name, make in pages.PAGES.items():
    (pages.FOLDER / name).write_text(make())
for name, tell in pictures.PICTURES.items():
    (pictures.FOLDER / name).write_text(pictures.render(tell()))
