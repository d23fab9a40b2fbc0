"""`report`: a Parquet file of `search` or `sweep` -> one HTML page that loads nothing."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template

from search.frontier import damage, read_frontier
from search.inputs import check_rows
from search.report.data import Page, frontier_page, sweep_page
from search.version import VERSION

PARTS = Path(__file__).parent
SCRIPTS = ("page.values.js", "page.chart.js", "page.parts.js", "page.js")
"""In the order in which they stand on the page."""


def page(path: str) -> str:
    """The page of a file that `search` or `sweep` wrote. Raises InputError for any other file."""
    stored = read_frontier(path, kinds=("frontier", "sweep"))
    with damage(path):
        if stored.kind == "frontier":
            check_rows(stored)
        return render(sweep_page(stored) if stored.kind == "sweep" else frontier_page(stored))


def render(made: Page) -> str:
    """One self-contained page; what the data holds is text, whatever it looks like."""
    style = (PARTS / "page.css").read_text("utf-8")
    script = "\n".join((PARTS / name).read_text("utf-8") for name in SCRIPTS)
    data = json.dumps(made.data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=html.escape(made.title), subtitle=html.escape(made.subtitle), version=VERSION, style=style,
        script=script, data=data,
    )  # fmt: skip
