"""Grids as heat maps in one SVG: throughput relative to the best point, the probed points, and the plan."""

from html import escape

from environments import CONCURRENCY, SIZES, size_bytes

CELL = (22, 15)
LEFT, TOP, GAP = 46, 34, 22
COLUMNS = 4
# From low to high throughput.
COLOURS = ["#f3eef8", "#dccbe9", "#bd9fd6", "#9a72bf", "#7848a4", "#552484", "#33085c"]


def colour(fraction: float) -> str:
    return COLOURS[min(int(fraction * len(COLOURS)), len(COLOURS) - 1)]


def draw_map(title: str, points: list[dict], evaluation: dict | None, position: tuple[int, int]) -> list[str]:
    """The map of one direction. The evaluation, if any, has the probed points and the plan."""
    (width, height), (x, y) = CELL, position
    best = max(points, key=lambda point: point["mb_per_second"])
    caption = f"best {best['mb_per_second']:.3g} MB/s" + (f", plan {evaluation['ratio']:.2f}" if evaluation else "")
    lines = [
        f'<text x="{x}" y="{y + 10}" class="title">{escape(title)}</text>',
        f'<text x="{x}" y="{y + 23}">{escape(caption)}</text>',
    ]
    corners = {}
    for row, size in enumerate(SIZES):
        for column, concurrency in enumerate(CONCURRENCY):
            corners[size_bytes(size), concurrency] = (x + LEFT + column * width, y + TOP + row * height)
        lines.append(f'<text x="{x + LEFT - 4}" y="{y + TOP + row * height + 11}" text-anchor="end">{size}</text>')
    for column, concurrency in enumerate(CONCURRENCY):
        label = (x + LEFT + column * width + width // 2, y + TOP + len(SIZES) * height + 11)
        lines.append(f'<text x="{label[0]}" y="{label[1]}" text-anchor="middle">{concurrency}</text>')
    for point in points:
        left, top = corners[point["size"], point["concurrency"]]
        fraction = point["mb_per_second"] / best["mb_per_second"] if best["mb_per_second"] else 0.0
        tooltip = f"{point['size'] >> 10} KiB x {point['concurrency']}: {point['mb_per_second']:.3g} MB/s, {point['mean_ms']:.3g} ms"
        lines.append(f'<rect x="{left}" y="{top}" width="{width - 1}" height="{height - 1}" fill="{colour(fraction)}"><title>{tooltip}</title></rect>')
    for size, concurrency in (evaluation or {}).get("probed", []):
        if (size, concurrency) in corners:
            left, top = corners[size, concurrency]
            lines.append(f'<circle cx="{left + width / 2}" cy="{top + height / 2}" r="3" class="probed"/>')
    plan = (evaluation["size"], evaluation["concurrency"]) if evaluation else None
    if plan in corners:
        left, top = corners[plan]
        lines.append(f'<rect x="{left + 1}" y="{top + 1}" width="{width - 3}" height="{height - 3}" class="plan"/>')
    return lines


def draw(grids: dict) -> str:
    """All maps. `grids` has the points and the evaluation by title."""
    (width, height) = (LEFT + len(CONCURRENCY) * CELL[0] + GAP, TOP + len(SIZES) * CELL[1] + 16 + GAP)
    rows = -(-len(grids) // COLUMNS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMNS * width}" height="{rows * height + 20}" role="img">',
        "<style>text{font:9px sans-serif;fill:#333}.title{font-weight:bold;font-size:10px}"
        ".probed{fill:#fff;stroke:#333}.plan{fill:none;stroke:#e5780b;stroke-width:2.5}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (title, (points, evaluation)) in enumerate(grids.items()):
        lines += draw_map(title, points, evaluation, (number % COLUMNS * width + 6, number // COLUMNS * height + 4))
    legend = "Darker: throughput closer to the best. Vertical: request size, horizontal: concurrency. Circles: probes, frame: plan; both may have a concurrency above 64."
    lines.append(f'<text x="6" y="{rows * height + 14}">{legend}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
