"""The performance targets of this server, compared with the measurements."""

from dataclasses import dataclass
from statistics import median

from lib.report import cheapest_peer, group, paired_ratio

KIB, MIB = 1 << 10, 1 << 20
OURS = "tradewind"


@dataclass
class Target:
    """One target: `value` must be at most (or at least) `limit`."""

    title: str
    limit: float
    value: float | None
    unit: str
    at_least: bool = False
    alternative: "Target | None" = None  # the target is also met if this one is

    def met(self) -> bool | None:
        if self.value is None:
            return None
        met = self.value >= self.limit if self.at_least else self.value <= self.limit
        return met or bool(self.alternative and self.alternative.met())

    def row(self) -> dict:
        sign = "at least" if self.at_least else "at most"
        row = {"target": self.title, "limit": f"{sign} {self.limit:,g}{self.unit}", "measured": "-", "met": "-"}
        if self.value is not None:
            digits = ",.4g" if self.value < 1000 else ",.0f"
            row |= {"measured": f"{self.value:{digits}}{self.unit}", "met": "yes" if self.met() else "**no**"}
        if self.alternative:
            other = self.alternative.row()
            row |= {name: f"{row[name]}; or {other[name]}" for name in ("limit", "measured")}
        return row


def speed_targets(samples: list[dict]) -> list[Target]:
    targets: list[Target] = []
    for location in dict.fromkeys(sample["location"] for sample in samples):
        own = [sample for sample in samples if sample["location"] == location]
        targets += _small(own, location) + _large_get(own, location) + _large_put(own, location)
    return targets


def _by_server(samples: list[dict], operation: str, size: int, connections: int | None) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for sample in samples:
        same = sample["operation"] == operation and sample["size"] == size
        if same and (connections is None or sample["connections"] == connections):
            found.setdefault(sample["server"], []).append(sample)
    # If both generators were used, the target is about the one that is not the bottleneck.
    preferred = "wrk" if operation == "GET" and size <= 64 * KIB else "loadgen"
    return {
        server: [sample for sample in each if sample["generator"] == preferred] or each for server, each in found.items()
    }


def _median(samples: list[dict] | None, name: str) -> float | None:
    return median(sample[name] for sample in samples) if samples else None


def _small(samples: list[dict], location: str) -> list[Target]:
    targets = []
    gets = _by_server(samples, "GET", 4 * KIB, None)
    if ours := gets.get(OURS):
        cpu = "cpu_ms_per_1000"
        relative_to_nginx = paired_ratio(ours, gets.get("nginx", []), cpu)
        rate = _median(ours, "operations_per_second")
        targets += [
            Target(f"4 KiB GET on {location}, CPU per 1,000", 14, _median(ours, cpu), " ms"),
            Target(f"4 KiB GET on {location}, CPU relative to nginx", 2, relative_to_nginx, " x"),
            Target(f"4 KiB GET on {location}, rate", 60_000, rate, "/s", at_least=True),
        ]
    puts = {name: each for name, each in _by_server(samples, "PUT", 4 * KIB, None).items()}
    puts = {name: [sample for sample in each if sample["connections"] > 1] for name, each in puts.items()}
    if ours := puts.get(OURS):
        targets.append(Target(f"4 KiB PUT on {location}, CPU per 1,000", 45, _median(ours, "cpu_ms_per_1000"), " ms"))
        rates = {
            name: _median(each, "operations_per_second")
            for name, each in puts.items()
            if not name.startswith(OURS) and each
        }
        if rates and location == "disk":
            best = max(rates, key=rates.__getitem__)
            ratio = paired_ratio(ours, puts[best], "operations_per_second")
            targets.append(Target(f"4 KiB PUT on {location}, rate relative to {best}", 3, ratio, " x", at_least=True))
    return targets


def _large_get(samples: list[dict], location: str) -> list[Target]:
    targets = []
    cpu = "cpu_seconds_per_gigabyte"
    for size in (MIB, 16 * MIB):
        gets = _by_server(samples, "GET", size, None)
        if ours := gets.get(OURS):
            name = f"{size // MIB} MiB GET on {location}, CPU"
            nginx = paired_ratio(ours, gets.get("nginx-nosendfile", []), cpu)
            targets.append(Target(f"{name} relative to nginx without sendfile", 1.2, nginx, " x"))
            if peer := cheapest_peer(gets, cpu):
                targets.append(Target(f"{name} relative to {peer}", 1.6, paired_ratio(ours, gets[peer], cpu), " x"))
    return targets


def _large_put(samples: list[dict], location: str) -> list[Target]:
    targets = []
    cpu = "cpu_seconds_per_gigabyte"
    for size in (MIB, 16 * MIB):
        for connections in sorted({sample["connections"] for sample in samples if sample["operation"] == "PUT"}):
            puts = _by_server(samples, "PUT", size, connections)
            peer = cheapest_peer(puts, cpu)
            if peer is None:
                continue
            streams = "1 connection" if connections == 1 else f"{connections} connections"
            name = f"{size // MIB} MiB PUT on {location}, {streams}, CPU relative to {peer}"
            for server, ours in puts.items():
                if not server.startswith(OURS):
                    continue
                limit = (0.8 if connections == 1 else 0.65) if server == OURS else 0.35
                ratio = paired_ratio(ours, puts[peer], cpu)
                targets.append(Target(f"{name} ({server})" if server != OURS else name, limit, ratio, " x"))
    return targets


# Limits relative to the best peer of each quantity. The CPU time of client and server together counts for single objects: a
# client could save its own by more, smaller requests, which cost the server.
MOVE_QUANTITIES = {"wall": "seconds", "CPU": "cpu_seconds", "CPU of client and server": "both_cpu_seconds"}
MOVE_LIMITS = {
    "small": {"wall": 0.6, "CPU": 0.3},
    "medium": {"wall": 0.8, "CPU": 0.6},
    "object": {"wall": 0.85, "CPU of client and server": 0.85},
    "parts": {"wall": 0.85, "CPU of client and server": 0.85},
    "large": {"wall": 0.8, "CPU": 0.6, "CPU of client and server": 0.85},
}
MOVE_MEMORY_MIB = 64
CEILING_LIMIT = 1.05
# Entries that are not clients: the maximum of the server, and the minimum cost of a copy.
CEILING = "(loadgen)"
FLOOR = "(floor)"


def move_targets(samples: list[dict]) -> list[Target]:
    targets: list[Target] = []
    for (workload, title, direction), same in group(samples, "workload", "title", "direction").items():
        for (server,), own in group(same, "server").items():
            by_client = {name: found for (name,), found in group(own, "client").items()}
            # Both show the maximum of the server; a large download has only the floor.
            floor = by_client.pop(FLOOR, [])
            ceiling = by_client.pop(CEILING, floor)
            ours = by_client.get(OURS, [])
            for quantity, limit in MOVE_LIMITS[workload].items():
                measure = MOVE_QUANTITIES[quantity]
                if peer := cheapest_peer(by_client, measure):
                    ratio = paired_ratio(ours, by_client[peer], measure)
                    target = Target(f"{title} {direction}, {server}, {quantity} relative to {peer}", limit, ratio, " x")
                    if ceiling and quantity == "wall":
                        relative_to_ceiling = paired_ratio(ours, ceiling, measure)
                        target.alternative = Target("", CEILING_LIMIT, relative_to_ceiling, " x the ceiling")
                    targets.append(target)
        memory = [each["peak_resident_bytes"] / MIB for each in same if each["client"] == OURS]
        peak = max(memory, default=None)
        targets.append(Target(f"{title} {direction}, peak memory", MOVE_MEMORY_MIB, peak, " MiB"))
    return targets
