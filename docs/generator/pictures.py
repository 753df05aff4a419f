"""The pictures in docs/pictures: timelines, drawn by the code that draws those of the page.

A picture is a function that tells a story. Its SVG has its own ground and colours for light and dark, so that it can be
shown as an image. ``make reference`` writes all of them.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gateway.fencing.record import Kind
from gateway.timeline.history import History
from gateway.timeline.picture import draw
from gateway.web.rendering import Assets, environment
from tests.web.timeline_samples import Story, party

FOLDER = Path(__file__).parents[1] / "pictures"


def zombie() -> History:
    """Return a takeover, with late writes of the holder that was paused."""
    first, second = party(33, "worker-a"), party(34, "worker-b")
    story = Story()
    story.lease(0, Kind.LEASE_GRANTED, first)
    story.raises(1, first)
    story.lease(30, Kind.LEASE_EXPIRED, first)
    story.lease(31, Kind.LEASE_GRANTED, second)
    story.raises(32, second, Kind.BARRIER)
    story.refuses(47, first)
    story.refuses(54, first)
    return story.history(-3, 70)


PICTURES: Mapping[str, Callable[[], History]] = {"zombie.svg": zombie}


def render(history: History) -> str:
    """Return the timeline of a history as an SVG that needs no other file."""
    picture = draw(history)
    figure = str(environment().get_template("timeline.html").make_module().figure(picture))  # type: ignore[attr-defined]
    drawn = figure[figure.index("<svg ") : figure.index("</svg>") + len("</svg>")]
    head, rest = drawn.split(">", 1)
    lines = [line.strip() for line in rest.splitlines() if line.strip()]
    ground = f'<rect class="ground" width="{picture.width}" height="{picture.height}" rx="6"/>'
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" class="timeline" ')
    return "\n".join([f"{head}>", f"<style>\n{_styles()}\n</style>", ground, *lines]) + "\n"


def _styles() -> str:
    """Return the rules for what is in a timeline, with plain colours, for light and for dark."""
    assets = Assets()
    colours = dict(re.findall(r"(--[\w-]+): light-dark\(([^)]+)\);", assets.text("style.css")))
    rules = [
        line.replace(".timeline", "", 1).strip()
        for line in assets.text("timeline.css").splitlines()
        if re.match(r"\.timeline [^{]*\{", line) and not re.search(r":hover|:focus|\.canvas|\.selection|\.hit", line)
    ]
    rules += [".hit { stroke: none; fill: none; }", ".ground { fill: var(--surface); }"]

    def with_colours(number: int) -> str:
        plain = {name: both.split(", ")[number] for name, both in colours.items()}
        return "\n".join(re.sub(r"var\((--[\w-]+)\)", lambda name: plain[name[1]], rule) for rule in rules)

    return f"{with_colours(0)}\n@media (prefers-color-scheme: dark) {{\n{with_colours(1)}\n}}"
