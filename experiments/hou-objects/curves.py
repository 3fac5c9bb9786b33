"""Curves over the concurrency, side by side, as SVG. Both axes are logarithmic (base 2)."""

import math
from dataclasses import dataclass

WIDTH, HEIGHT, MARGIN = 420, 260, 46
COLOURS = ["#1f4e79", "#c55a11", "#3a7d34", "#7f7f7f"]


@dataclass(frozen=True)
class Curve:
    name: str
    points: dict[int, float]


def draw(figures: list[tuple[str, list[Curve]]]) -> str:
    width, height = WIDTH * len(figures), HEIGHT + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for number, (title, curves) in enumerate(figures):
        parts += one(title, curves, number * WIDTH)
    return "\n".join([*parts, "</svg>"]) + "\n"


def one(title: str, curves: list[Curve], left: int) -> list[str]:
    columns = sorted({n for curve in curves for n in curve.points})
    values = [value for curve in curves for value in curve.points.values()]
    low, high = math.floor(math.log2(min(values))), max(math.ceil(math.log2(max(values))), math.floor(math.log2(min(values))) + 1)
    across = (WIDTH - 2 * MARGIN) / math.log2(columns[-1])
    x = lambda n: left + MARGIN + across * math.log2(n)  # noqa: E731
    y = lambda value: HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (math.log2(value) - low) / (high - low)  # noqa: E731
    parts = [f'<text x="{left + MARGIN}" y="20" font-size="13">{title}</text>']
    for power in range(low, high + 1):
        parts.append(f'<line x1="{left + MARGIN}" x2="{left + WIDTH - MARGIN}" y1="{y(2**power):.1f}" y2="{y(2**power):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + MARGIN - 6}" y="{y(2**power) + 4:.1f}" text-anchor="end">{2**power:g}</text>')
    for n in columns:
        if n & (n - 1) == 0:
            parts.append(f'<text x="{x(n):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{n}</text>')
    for number, curve in enumerate(curves):
        colour, points = COLOURS[number], sorted(curve.points.items())
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(f"{x(n):.1f},{y(v):.1f}" for n, v in points)}"/>')
        parts += [f'<circle cx="{x(n):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for n, v in points]
        parts.append(f'<text x="{left + MARGIN + number * 110}" y="{HEIGHT + 16}" fill="{colour}">{curve.name}</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">concurrency</text>')
    return parts
