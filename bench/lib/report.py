"""Tables and raw results: medians over the rounds, and ratios of values of the same round."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

from lib.bench import Bench, size_name
from lib.quiet import MAX_FOREIGN_CORES, MAX_STEAL_CORES
from lib.servers import REPOSITORY, Server

BASELINE_GET = "nginx-nosendfile"
STATIC = ("nginx", "nginx-nosendfile")


def environment(bench: Bench) -> dict:
    """Commit, machine and versions of the measured programs."""
    git = ["git", "-C", str(REPOSITORY)]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": output_of([*git, "rev-parse", "--short=12", "HEAD"]) or "none",
        "uncommitted": bool(output_of([*git, "status", "--porcelain", "crates", "Cargo.toml"])),
        "cpu_model": _first(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo")),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "locations": {location.name: _filesystem(location.path) for location in bench.locations},
        "servers": {server.name: _server_version(server) for server in bench.servers},
    }


def wrk_version() -> str:
    return (output_of(["wrk", "-v"]) or "absent").split("\n")[0].split(" Copyright")[0]


def output_of(command: list[str]) -> str:
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout or done.stderr).strip()


def _server_version(server: Server) -> str:
    if server.version:
        return server.version
    flag = "-v" if server.is_static else "--version"
    return output_of([str(server.binary), flag]).rpartition(": ")[2].split("\n")[0]


def _first(pattern: str, path: Path) -> str:
    found = re.search(pattern, path.read_text())
    return found.group(1).strip() if found else "unknown"


def _filesystem(path: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def group(samples: list[dict], *names: str) -> dict[tuple, list[dict]]:
    groups: dict[tuple, list[dict]] = {}
    for sample in samples:
        groups.setdefault(tuple(sample[name] for name in names), []).append(sample)
    return groups


def medians(samples: list[dict]) -> dict[str, float]:
    names = [name for name, value in samples[0].items() if isinstance(value, float | int)]
    return {name: median(sample[name] for sample in samples) for name in names}


def paired_ratio(samples: list[dict], baseline: list[dict], name: str) -> float | None:
    """The median over the rounds of sample / baseline, each pair from the same round."""
    by_round = {sample["round"]: sample[name] for sample in baseline}
    ratios = [sample[name] / by_round[sample["round"]] for sample in samples if by_round.get(sample["round"])]
    return median(ratios) if ratios else None


def cheapest_peer(by_server: dict[str, list[dict]], name: str) -> str | None:
    """The S3 server other than tradewind with the lowest median of `name`."""
    peers = {
        server: median(sample[name] for sample in samples)
        for server, samples in by_server.items()
        if server not in STATIC and not server.startswith("tradewind")
    }
    return min(peers, key=peers.__getitem__) if peers else None


def speed_tables(bench: Bench) -> list[str]:
    lines: list[str] = []
    for (operation, location, connections), samples in group(
        bench.samples, "operation", "location", "connections"
    ).items():
        plural = "connection" if connections == 1 else "connections"
        lines += ["", f"### {operation} on {location}, {connections} {plural}", ""]
        against = "nginx (no sendfile)" if operation == "GET" else "cheapest peer"
        lines.append(
            "| size | server | operations/s | MB/s | CPU ms / 1,000 | CPU s / GB | CPU relative to "
            f"{against} | p50 ms | p99 ms | peak anonymous MiB | spread |"
        )
        lines.append("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
        for (size,), same_size in group(samples, "size").items():
            for generator, mine in group(same_size, "generator").items():
                lines += _size_rows(operation, size, generator[0], mine)
    return lines


def _size_rows(operation: str, size: int, generator: str, samples: list[dict]) -> list[str]:
    by_server = {server: found for (server,), found in group(samples, "server").items()}
    measure = "cpu_ms_per_1000"
    baseline = BASELINE_GET if operation == "GET" else cheapest_peer(by_server, measure)
    label = f"{size_name(size)} ({generator})" if operation == "GET" else size_name(size)
    rows = []
    for server, found in by_server.items():
        middle = medians(found)
        ratio = paired_ratio(found, by_server.get(baseline, []), measure)
        rates = [sample["operations_per_second"] for sample in found]
        spread = (max(rates) - min(rates)) / middle["operations_per_second"]
        against = "-" if ratio is None else f"{ratio:.2f} x"
        rows.append(
            f"| {label} | {server} | {middle['operations_per_second']:,.0f} "
            f"| {middle['megabytes_per_second']:,.0f} | {middle['cpu_ms_per_1000']:,.1f} "
            f"| {middle['cpu_seconds_per_gigabyte']:.3f} | {against} | {middle['p50_ms']:.2f} | {middle['p99_ms']:.2f} "
            f"| {middle['peak_anonymous_bytes'] / (1 << 20):,.0f} | {spread:.0%} |"
        )
    return rows


def plain_table(rows: list[dict]) -> list[str]:
    """A Markdown table with a column for each key of the rows."""
    if not rows:
        return []
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(str(row.get(column, "-")) for column in columns) + " |" for row in rows]


def machine(bench: Bench, about: dict, tools: str = "") -> str:
    """The first line of a report: commit, machine, and a mark if the results are unreliable."""
    mark = "" if bench.worst.is_quiet() else "**NOT QUIET: other processes used the machine; these results are unreliable.** "
    commit = about["commit"] + (" with uncommitted changes" if about["uncommitted"] else "")
    locations = ", ".join(f"{name}: {kind}" for name, kind in about["locations"].items())
    return (
        f"{mark}Commit {commit}, {about['time']}; {about['cpu_model']}, {about['cpus']} CPUs, "
        f"{about['memory_gib']} GiB, Linux {about['kernel']}; {locations}{'; ' + tools if tools else ''}."
    )


def foreign_load(bench: Bench, load: str) -> str:
    """The highest foreign load of all measured intervals."""
    return (
        f"Load average before: {load}. Highest foreign load of a measured interval: other processes "
        f"{bench.worst.foreign_cores:.2f} cores (limit {MAX_FOREIGN_CORES}), hypervisor "
        f"{bench.worst.steal_cores:.2f} (limit {MAX_STEAL_CORES})."
    )


def skipped(bench: Bench) -> list[str]:
    return ["", "Skipped:", ""] + [f"- {reason[:600]}" for reason in bench.skipped] if bench.skipped else []


def document(bench: Bench, about: dict, settings: dict, sections: list[str], load: str) -> str:
    """The report of the servers as Markdown."""
    lines = [
        machine(bench, about, about["wrk"]),
        "",
        f"{settings['rounds']} rounds of {settings['seconds']} s, servers alternate in rotated order; medians. "
        + foreign_load(bench, load),
        *sections,
        "",
        "### Durability of an acknowledged PUT",
        "",
        *plain_table(
            [
                {"server": server.name, "version": about["servers"][server.name], "durability": server.durability}
                for server in bench.servers
            ]
        ),
        *skipped(bench),
    ]
    return "\n".join(lines) + "\n"


def write(bench: Bench, command: str, about: dict, settings: dict, parts: dict, text: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{command}-{about['time'].replace(':', '').replace('-', '')}-{about['commit'][:12]}"
    raw = {
        "environment": about,
        "settings": settings,
        "worst_interval": asdict(bench.worst),
        "skipped": bench.skipped,
        "samples": bench.samples,
        **parts,
    }
    (out / f"{stem}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (out / f"{stem}.md").write_text(text)
    bench.log(f"written: {out / stem}.json and .md")


def publish(bench: Bench, command: str, about: dict, text: str, document_path: Path, parts: list[str]) -> None:
    """Appends the report between markers to a document and removes older reports of the same parts of the command.
    Other text is unchanged."""
    if not bench.worst.is_quiet() or about["uncommitted"]:
        bench.log("not published: the machine was not idle, or the code has uncommitted changes")
        return
    name = f"bench/{command} {' '.join(parts)}"
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    old = document_path.read_text() if document_path.exists() else "# Benchmarks\n"
    block = f"{begin}\n## {name}\n\n{text}{end}"
    marked = rf"<!-- bench/{command} ([\w ]+): begin -->\n.*?<!-- bench/{command} \1: end -->\n*"
    section = re.compile(marked, re.DOTALL)
    kept = section.sub(lambda found: "" if set(found[1].split()) & set(parts) else found[0], old)
    document_path.write_text(kept.rstrip("\n") + "\n\n" + block + "\n")
    bench.log(f"published in {document_path}")
