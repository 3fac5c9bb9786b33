"""Grids as small maps in one SVG: what each cell carries of the best, which were tried, which is the plan."""

from html import escape

from profiles import PARALLEL, SIZES, size_bytes

CELL = (22, 15)
LEFT, TOP, GAP = 46, 34, 22
ACROSS = 4
# From little to much.
COLOURS = ["#f3eef8", "#dccbe9", "#bd9fd6", "#9a72bf", "#7848a4", "#552484", "#33085c"]


def colour(part: float) -> str:
    return COLOURS[min(int(part * len(COLOURS)), len(COLOURS) - 1)]


def one(title: str, cells: list[dict], judged: dict | None, at: tuple[int, int]) -> list[str]:
    """The map of one direction; `judged` says what was tried and chosen, where that is known."""
    (width, height), (x, y) = CELL, at
    best = max(cells, key=lambda cell: cell["mb_per_second"])
    says = f"best {best['mb_per_second']:.3g} MB/s" + (f", plan {judged['ratio']:.2f}" if judged else "")
    lines = [
        f'<text x="{x}" y="{y + 10}" class="title">{escape(title)}</text>',
        f'<text x="{x}" y="{y + 23}">{escape(says)}</text>',
    ]
    places = {}
    for row, size in enumerate(SIZES):
        for column, parallel in enumerate(PARALLEL):
            places[size_bytes(size), parallel] = (x + LEFT + column * width, y + TOP + row * height)
        lines.append(f'<text x="{x + LEFT - 4}" y="{y + TOP + row * height + 11}" text-anchor="end">{size}</text>')
    for column, parallel in enumerate(PARALLEL):
        place = (x + LEFT + column * width + width // 2, y + TOP + len(SIZES) * height + 11)
        lines.append(f'<text x="{place[0]}" y="{place[1]}" text-anchor="middle">{parallel}</text>')
    for cell in cells:
        left, top = places[cell["size"], cell["parallel"]]
        part = cell["mb_per_second"] / best["mb_per_second"] if best["mb_per_second"] else 0.0
        told = f"{cell['size'] >> 10} KiB x {cell['parallel']}: {cell['mb_per_second']:.3g} MB/s, {cell['mean_ms']:.3g} ms"
        lines.append(f'<rect x="{left}" y="{top}" width="{width - 1}" height="{height - 1}" fill="{colour(part)}"><title>{told}</title></rect>')
    for size, parallel in (judged or {}).get("tried", []):
        if (size, parallel) in places:
            left, top = places[size, parallel]
            lines.append(f'<circle cx="{left + width / 2}" cy="{top + height / 2}" r="3" class="tried"/>')
    if judged and (judged["size"], judged["parallel"]) in places:
        left, top = places[judged["size"], judged["parallel"]]
        lines.append(f'<rect x="{left + 1}" y="{top + 1}" width="{width - 3}" height="{height - 3}" class="plan"/>')
    return lines


def draw(grids: dict) -> str:
    """All of them: by title, the cells and what was judged."""
    (width, height) = (LEFT + len(PARALLEL) * CELL[0] + GAP, TOP + len(SIZES) * CELL[1] + 16 + GAP)
    rows = -(-len(grids) // ACROSS)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{ACROSS * width}" height="{rows * height + 20}" role="img">',
        "<style>text{font:9px sans-serif;fill:#333}.title{font-weight:bold;font-size:10px}"
        ".tried{fill:#fff;stroke:#333}.plan{fill:none;stroke:#e5780b;stroke-width:2.5}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, (title, (cells, judged)) in enumerate(grids.items()):
        lines += one(title, cells, judged, (number % ACROSS * width + 6, number // ACROSS * height + 4))
    told = "Darker carries more of the best. Sizes of requests downwards, requests at a time to the right. Circles were tried, the frame is the plan; both may lie at more than 64 at a time."
    lines.append(f'<text x="6" y="{rows * height + 14}">{told}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
