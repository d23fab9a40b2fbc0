"""Scatter plots of measured runs against predictions, as SVG: no library, so that a test can make them again.

Text and lines follow the reader's light or dark scheme; points have one colour a GPU that is readable on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

SIDE, LEFT, TOP, GAP, FOOT = 290.0, 58.0, 44.0, 86.0, 66.0
BAND = 0.2
"""Half width of the band: predictions within this share of what was measured."""
COLOURS = ("#3b82f6", "#e8702a", "#22a06b", "#a66bf0", "#d69e00", "#e5484d")
STYLE = """
text { font: 12px sans-serif; fill: #24292f }
.title { font-size: 14px; font-weight: 600 }
.frame, .tick { stroke: #8b949e; fill: none }
.tick { opacity: .3 }
.even { stroke: #8b949e; stroke-dasharray: 4 3 }
.band { fill: #8b949e; opacity: .18 }
.run { fill: none; stroke-width: 5; stroke-linecap: round; opacity: .65 }
@media (prefers-color-scheme: dark) { text { fill: #d0d7de } }
"""
Points = Mapping[str, Sequence[tuple[float, float]]]
"""(measured, predicted) by the name of the GPU."""


def draw(title: str, panels: Sequence[tuple[str, str, Points]]) -> str:
    """One plot a panel, side by side: (what with its unit, its errors in words, points)."""
    width = LEFT + len(panels) * SIDE + (len(panels) - 1) * GAP + 16.0
    height = TOP + SIDE + FOOT
    gpus = sorted({gpu for *_, points in panels for gpu in points})
    colours = dict(zip(gpus, COLOURS, strict=False))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        f"<title>{escape(title)}: measured against predicted</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT:.0f}" y="16">{escape(title)}</text>',
    ]
    for place, (what, errors, points) in enumerate(panels):
        lines += [f'<g transform="translate({LEFT + place * (SIDE + GAP):.0f} {TOP:.0f})">']
        lines += [*_panel(what, errors, points, colours), "</g>"]
    lines += [*_legend(colours, height - 12.0), "</svg>", ""]
    return "\n".join(lines)


def _legend(colours: Mapping[str, str], y: float) -> list[str]:
    lines, x = [], LEFT
    for gpu, colour in colours.items():
        lines.append(f'<path class="run" stroke="{colour}" d="M{x:.0f} {y - 4:.0f}h0"/>')
        lines.append(f'<text x="{x + 8:.0f}" y="{y:.0f}">{escape(gpu)}</text>')
        x += 26.0 + 7.2 * len(gpu)
    return lines


def _panel(what: str, errors: str, points: Points, colours: Mapping[str, str]) -> list[str]:
    ticks = ticks_of([value for pairs in points.values() for pair in pairs for value in pair])
    low, high = math.log(ticks[0]), math.log(ticks[-1])

    def at(value: float) -> float:
        return SIDE * (math.log(value) - low) / (high - low)

    shift = [at(ticks[0] * factor) for factor in (1.0 - BAND, 1.0 + BAND)]
    side = f"{SIDE:.0f}"
    lines = [
        f'<text y="-8">{escape(errors)}</text>',
        f'<clipPath id="{what[0]}"><rect width="{side}" height="{side}"/></clipPath>',
        f'<path class="band" clip-path="url(#{what[0]})" d="M0 {SIDE - shift[0]:.1f}L{side} {-shift[0]:.1f}'
        f'L{side} {-shift[1]:.1f}L0 {SIDE - shift[1]:.1f}z"/>',
        f'<path class="even" d="M0 {side}L{side} 0"/>',
    ]
    for tick in ticks:
        where = at(tick)
        lines.append(f'<path class="tick" d="M{where:.1f} 0V{side}M0 {SIDE - where:.1f}H{side}"/>')
        lines.append(f'<text x="{where:.1f}" y="{SIDE + 16:.0f}" text-anchor="middle">{tick:g}</text>')
        lines.append(f'<text x="-6" y="{SIDE - where + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for gpu, pairs in sorted(points.items()):
        marks = "".join(f"M{at(measured):.1f} {SIDE - at(predicted):.1f}h0" for measured, predicted in pairs)
        lines.append(f'<path class="run" stroke="{colours[gpu]}" d="{marks}"/>')
    middle = SIDE / 2.0
    return [
        *lines,
        f'<rect class="frame" width="{side}" height="{side}"/>',
        f'<text x="{middle:.0f}" y="{SIDE + 34:.0f}" text-anchor="middle">measured {escape(what)}</text>',
        f'<g transform="translate(-42 {middle:.0f}) rotate(-90)">',
        f'<text text-anchor="middle">predicted {escape(what)}</text></g>',
    ]


def ticks_of(values: Iterable[float]) -> list[float]:
    """Round values around all of them: 1, 2 and 5 in each decade, the decades alone where these are many."""
    found = sorted(values)
    decades = range(math.floor(math.log10(found[0])) - 1, math.ceil(math.log10(found[-1])) + 2)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        all_ticks = [step * 10.0**decade for decade in decades for step in steps]
        first = max(at for at, tick in enumerate(all_ticks) if tick <= found[0])
        last = min(at for at, tick in enumerate(all_ticks) if tick >= found[-1])
        ticks = all_ticks[first : max(last, first + 1) + 1]
        if len(ticks) <= 8 or steps == (1,):
            break
    assert all(low < high for low, high in pairwise(ticks))
    return ticks
