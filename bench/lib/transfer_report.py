"""The report of bench/move: a table for each workload and direction, and the flags of all clients."""

from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from lib.bench import Bench
from lib.clients import Client, Copy
from lib.generators import BUCKET
from lib.report import foreign_load, group, machine, paired_ratio, plain_table, skipped
from lib.servers import ACCESS_KEY, REPOSITORY, SECRET_KEY
from lib.targets import CEILING, OURS

MIB = 1 << 20


def tables(samples: list[dict]) -> list[str]:
    lines: list[str] = []
    for (title, direction), same in group(samples, "title", "direction").items():
        lines += ["", f"### {title} {direction}", ""]
        rows = [row for found in group(same, "server").values() for row in _rows(found)]
        lines += plain_table(rows)
    return lines


def _rows(samples: list[dict]) -> list[dict]:
    by_client = {client: found for (client,), found in group(samples, "client").items()}
    ours = by_client.get(OURS, [])
    # Fastest first: the order of appearance depends on the rotation.
    order = sorted(by_client, key=lambda client: median(sample["seconds"] for sample in by_client[client]))
    return [_row(client, by_client[client], ours) for client in order]


def _row(client: str, found: list[dict], ours: list[dict]) -> dict:
    def middle(name: str, digits: str) -> str:
        return format(median(sample[name] for sample in found), digits)

    is_client = client != CEILING
    return {
        "server": found[0]["server"],
        "client": client,
        "wall s": middle("seconds", ",.2f"),
        "wall quartiles": _quartiles(found, "seconds"),
        "tradewind / this, wall": _ratio(ours, found, "seconds"),
        "objects/s": middle("objects_per_second", ",.0f"),
        "MB/s": middle("megabytes_per_second", ",.0f"),
        "CPU s": middle("cpu_seconds", ",.2f"),
        "CPU quartiles": _quartiles(found, "cpu_seconds"),
        "tradewind / this, CPU": _ratio(ours, found, "cpu_seconds") if is_client else "-",
        "peak MiB": f"{max(sample['peak_resident_bytes'] for sample in found) / MIB:,.0f}" if is_client else "-",
        "server CPU s": middle("server_cpu_seconds", ",.2f"),
        "both CPU s": middle("both_cpu_seconds", ",.2f"),
        "tradewind / this, both CPU": _ratio(ours, found, "both_cpu_seconds") if is_client else "-",
    }


def _quartiles(samples: list[dict], name: str) -> str:
    values = [sample[name] for sample in samples]
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{low:,.2f} to {high:,.2f}"


def _ratio(ours: list[dict], found: list[dict], name: str) -> str:
    ratio = paired_ratio(ours, found, name)
    return "-" if ratio is None or ours is found else f"{ratio:.2f} x"


def _commands(clients: list[Client], about: dict) -> list[str]:
    """The commands of the clients, with placeholders for names that differ between runs."""
    rows = []
    for client in clients:
        up, down = (Copy(upload, "", "HOST:PORT", BUCKET, Path("DIRECTORY")) for upload in (True, False))
        # A setting that depends on the server is listed once for each value.
        each = [client.environment(replace(up, server=server)) for server in about["servers"]]
        settings = list(dict.fromkeys(f"{name}={value}" for found in each for name, value in found.items()))
        settings += [f"{name}: {' '.join(text.split())}" for name, text in client.files.items()]
        hidden = " ".join(settings).replace(SECRET_KEY, "SECRET").replace(ACCESS_KEY, "KEY")

        def shown(arguments: list[str]) -> str:
            return f"`{' '.join([command, *arguments])}`".replace(f"{REPOSITORY}/", "")

        command = client.name.partition(":")[0]
        rows.append(
            {
                "client": client.name,
                "version": about["clients"][client.name],
                "up": shown(client.arguments(up)),
                "down": shown(client.arguments(down)),
                "settings": f"`{hidden}`",
            }
        )
    single = "A single file is copied without `-r`, `--recursive` and `*`; rclone uses `copyto`."
    return ["", "### Clients and their settings", "", *plain_table(rows), "", single]


def document(
    bench: Bench, clients: list[Client], about: dict, settings: dict, targets: list[dict], load: str
) -> str:
    lines = [
        machine(bench, about),
        "",
        f"{settings['rounds']} rounds, clients alternate in rotated order; medians, and the highest peak memory of all "
        f"rounds. {foreign_load(bench, load)} Every byte of every copy was compared.",
        *tables(bench.samples),
        "",
        "### Targets",
        "",
        *plain_table(targets),
        *_commands(clients, about),
        "",
        f"Servers: {', '.join(f'{name} {version}' for name, version in about['servers'].items())}.",
        *skipped(bench),
    ]
    return "\n".join(lines) + "\n"
