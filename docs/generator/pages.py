"""The pages by their file names."""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generator import commands, configuration, errors, events, figures, http, metrics

FOLDER = Path(__file__).parents[1] / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands.make,
    "configuration.md": configuration.make,
    "errors.md": errors.make,
    "events.md": events.make,
    "figures.md": figures.make,
    "http.md": http.make,
    http.OBJECTS: http.make_objects,
    "metrics.md": metrics.make,
}
