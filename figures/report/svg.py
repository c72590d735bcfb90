"""A figure as SVG inside a page: its colours follow the page's, its values can be pointed at."""

import io
import re
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from figures import style
from figures.report.marks import POINTS_PER_INCH, Mark, marks

_ROLES = {
    style.INK.lower(): "currentColor",
    "#000000": "currentColor",
    "#444444": "var(--chart-axis, #444444)",
    style.FAINT.lower(): "var(--chart-faint, #888888)",
    "#dddddd": "var(--chart-grid, #dddddd)",
    "#ffffff": "var(--chart-page, #ffffff)",
}
"""Colours of the style with a role of their own on the page; all others are series."""

_COLOR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_RADIUS_PT = 5.0


def to_svg(figure: Figure, *, name: str, label: str) -> str:
    """The figure as one `svg` element that fits into any page.

    Args:
        name: starts every id, so that several figures fit into one page.
        label: says what the figure shows.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    width, height = figure.get_size_inches() * POINTS_PER_INCH
    body = buffer.getvalue()
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"font-family: [^;\"]*;?\s*", "", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    body = _COLOR.sub(lambda found: _on_page(found[0]), body)
    body = re.sub(r"\n\s*", "\n", body)
    found = marks(figure)
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="group" '
        f'aria-label="{escape(label)}" tabindex="0">{body}'
        f'<g class="marks">{"".join(map(_hit, found))}</g></svg>'
    )


def _on_page(color: str) -> str:
    """The colour as the page has it, in daylight and in the dark."""
    return _ROLES.get(color, f"var(--s-{color[1:]}, {color})")


def _hit(mark: Mark) -> str:
    """An invisible shape that can be pointed at, and says its value."""
    if mark.is_bar:
        form = (
            f'<rect x="{mark.x:.2f}" y="{mark.y:.2f}" width="{mark.width:.2f}" '
            f'height="{mark.height:.2f}"'
        )
        end = "rect"
    else:
        form, end = f'<circle cx="{mark.x:.2f}" cy="{mark.y:.2f}" r="{_RADIUS_PT:g}"', "circle"
    return f"{form}><title>{escape(mark.text, quote=False)}</title></{end}>"
