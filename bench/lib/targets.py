"""The figures this server is meant to reach, compared with what was measured."""

from dataclasses import dataclass
from statistics import median

from lib.report import cheapest_peer, group, paired_ratio

KIB, MIB = 1 << 10, 1 << 20
OURS = "tradewind"


@dataclass
class Target:
    """One promise: `value` must be at most (or at least) `limit`."""

    what: str
    limit: float
    value: float | None
    unit: str
    at_least: bool = False
    otherwise: "Target | None" = None  # keeping this one keeps the promise too

    def met(self) -> bool | None:
        if self.value is None:
            return None
        met = self.value >= self.limit if self.at_least else self.value <= self.limit
        return met or bool(self.otherwise and self.otherwise.met())

    def row(self) -> dict:
        sign = "at least" if self.at_least else "at most"
        row = {"target": self.what, "limit": f"{sign} {self.limit:,g}{self.unit}", "measured": "-", "met": "-"}
        if self.value is not None:
            digits = ",.4g" if self.value < 1000 else ",.0f"
            row |= {"measured": f"{self.value:{digits}}{self.unit}", "met": "yes" if self.met() else "**no**"}
        if self.otherwise:
            other = self.otherwise.row()
            row |= {name: f"{row[name]}; or {other[name]}" for name in ("limit", "measured")}
        return row


def speed_targets(samples: list[dict]) -> list[Target]:
    targets: list[Target] = []
    for place in dict.fromkeys(sample["place"] for sample in samples):
        here = [sample for sample in samples if sample["place"] == place]
        targets += _small(here, place) + _large_get(here, place) + _large_put(here, place)
    return targets


def _by_server(samples: list[dict], operation: str, size: int, connections: int | None) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for sample in samples:
        same = sample["operation"] == operation and sample["size"] == size
        if same and (connections is None or sample["connections"] == connections):
            found.setdefault(sample["server"], []).append(sample)
    # Where both generators read, the promise is about the one that is not itself the bottleneck.
    usual = "wrk" if operation == "GET" and size <= 64 * KIB else "loadgen"
    return {
        server: [sample for sample in each if sample["generator"] == usual] or each for server, each in found.items()
    }


def _median(samples: list[dict] | None, name: str) -> float | None:
    return median(sample[name] for sample in samples) if samples else None


def _small(samples: list[dict], place: str) -> list[Target]:
    targets = []
    gets = _by_server(samples, "GET", 4 * KIB, None)
    if ours := gets.get(OURS):
        cpu = "cpu_ms_per_1000"
        of_nginx = paired_ratio(ours, gets.get("nginx", []), cpu)
        rate = _median(ours, "operations_per_second")
        targets += [
            Target(f"4 KiB GET on {place}, CPU per 1,000", 14, _median(ours, cpu), " ms"),
            Target(f"4 KiB GET on {place}, CPU against nginx", 2, of_nginx, " x"),
            Target(f"4 KiB GET on {place}, rate", 60_000, rate, "/s", at_least=True),
        ]
    puts = {name: each for name, each in _by_server(samples, "PUT", 4 * KIB, None).items()}
    puts = {name: [sample for sample in each if sample["connections"] > 1] for name, each in puts.items()}
    if ours := puts.get(OURS):
        targets.append(Target(f"4 KiB PUT on {place}, CPU per 1,000", 45, _median(ours, "cpu_ms_per_1000"), " ms"))
        rates = {
            name: _median(each, "operations_per_second")
            for name, each in puts.items()
            if not name.startswith(OURS) and each
        }
        if rates and place == "disk":
            best = max(rates, key=rates.__getitem__)
            ratio = paired_ratio(ours, puts[best], "operations_per_second")
            targets.append(Target(f"4 KiB PUT on {place}, rate against {best}", 3, ratio, " x", at_least=True))
    return targets


def _large_get(samples: list[dict], place: str) -> list[Target]:
    targets = []
    cpu = "cpu_seconds_per_gigabyte"
    for size in (MIB, 16 * MIB):
        gets = _by_server(samples, "GET", size, None)
        if ours := gets.get(OURS):
            name = f"{size // MIB} MiB GET on {place}, CPU"
            nginx = paired_ratio(ours, gets.get("nginx-nosendfile", []), cpu)
            targets.append(Target(f"{name} against nginx without sendfile", 1.2, nginx, " x"))
            if peer := cheapest_peer(gets, cpu):
                targets.append(Target(f"{name} against {peer}", 1.6, paired_ratio(ours, gets[peer], cpu), " x"))
    return targets


def _large_put(samples: list[dict], place: str) -> list[Target]:
    targets = []
    cpu = "cpu_seconds_per_gigabyte"
    for size in (MIB, 16 * MIB):
        for connections in sorted({sample["connections"] for sample in samples if sample["operation"] == "PUT"}):
            puts = _by_server(samples, "PUT", size, connections)
            peer = cheapest_peer(puts, cpu)
            if peer is None:
                continue
            streams = "1 connection" if connections == 1 else f"{connections} connections"
            name = f"{size // MIB} MiB PUT on {place}, {streams}, CPU against {peer}"
            for server, ours in puts.items():
                if not server.startswith(OURS):
                    continue
                limit = (0.8 if connections == 1 else 0.65) if server == OURS else 0.35
                ratio = paired_ratio(ours, puts[peer], cpu)
                targets.append(Target(f"{name} ({server})" if server != OURS else name, limit, ratio, " x"))
    return targets


# At most so much of the best peer's time by the clock, and of the least processor time of any peer.
MOVE_LIMITS = {"small": (0.6, 0.3), "medium": (0.8, 0.6), "large": (0.8, 0.6)}
MOVE_MEMORY_MIB = 64
CEILING_LIMIT = 1.05
# Entrants that are no clients: what the server can give, and what a copy costs at least.
CEILING = "(loadgen)"
FLOOR = "(floor)"


def move_targets(samples: list[dict]) -> list[Target]:
    targets: list[Target] = []
    for (workload, title, direction), same in group(samples, "workload", "title", "direction").items():
        wall, cpu = MOVE_LIMITS[workload]
        for (server,), here in group(same, "server").items():
            by_client = {name: found for (name,), found in group(here, "client").items()}
            # Both show what the server can give; of a large download only the bare copy does.
            floor = by_client.pop(FLOOR, [])
            ceiling = by_client.pop(CEILING, floor)
            ours = by_client.get(OURS, [])
            for what, measure, limit in (("wall", "seconds", wall), ("CPU", "cpu_seconds", cpu)):
                if peer := cheapest_peer(by_client, measure):
                    ratio = paired_ratio(ours, by_client[peer], measure)
                    target = Target(f"{title} {direction}, {server}, {what} against {peer}", limit, ratio, " x")
                    if ceiling and what == "wall":
                        of_ceiling = paired_ratio(ours, ceiling, measure)
                        target.otherwise = Target("", CEILING_LIMIT, of_ceiling, " x the ceiling")
                    targets.append(target)
        memory = [each["peak_resident_bytes"] / MIB for each in same if each["client"] == OURS]
        most = max(memory, default=None)
        targets.append(Target(f"{title} {direction}, peak memory", MOVE_MEMORY_MIB, most, " MiB"))
    return targets
