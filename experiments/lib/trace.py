"""Hou 2017, figures 21 and 22: a tree is unpacked into a directory that is synced, with so many requests at a time."""

import random
import sys
from collections import defaultdict
from pathlib import Path

from lib import figure
from lib.world import Failed, World, go_apart, tradewind


def make_tree(root: Path, count: int, mean: int, spread: float, seed: int) -> list[int]:
    """Files whose sizes are drawn log-normally and scaled to the mean; their bytes do not compress."""
    draw = random.Random(seed)
    sizes = [draw.lognormvariate(0, spread) for _ in range(count)]
    scale = mean * count / sum(sizes)
    sizes = [max(1, round(size * scale)) for size in sizes]
    for number, size in enumerate(sizes):
        path = root / f"{number // 100:02}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))
    return sizes


def run(name: str, about: str, shape: tuple[int, int, float], degrees: str) -> None:
    options = figure.parser(about, degrees, 25, "656mbit")
    options.add_argument("--files", type=int, default=shape[0], help="(default: %(default)s)")
    options = options.parse_args()
    binary = tradewind(options.tradewind)
    go_apart()
    costs = defaultdict(list)
    with World(binary, options.scratch) as world:
        tree = world.directory / "tree"
        sizes = make_tree(tree, options.files, *shape[1:], seed=17)
        world.run(["mb", "s3://synced"])
        for turn, degree in enumerate(figure.rounds(options, ["default"])):
            jobs = [] if degree == "default" else ["--jobs", degree]
            place = f"s3://synced/{turn}/"
            cost = world.behind(figure.line(options), ["sync", *jobs, tree, place])
            left = world.run(["sync", "--checksum", "--delete", "--dry-run", tree, place]).stdout
            if any(not action.startswith("compare ") for action in left.splitlines()):
                raise Failed(f"{degree} at a time left something to do: {left[:200]}")
            same = world.run(["sync", "--checksum", "--json", tree, place]).stdout
            if '"copied":0' not in same:
                raise Failed(f"{degree} at a time carried other bytes: {same[-200:]}")
            costs[degree].append(cost)
            world.run(["rm", "-r", place])
    mean = sum(sizes) / len(sizes) / 1000
    said = [f"{len(sizes):,} files of {mean:.1f} KB in the mean, compared by checksum after every run."]
    figure.report(name, options, costs, said)


if __name__ == "__main__":
    sys.exit("this is a part of hou-21 and hou-22")
