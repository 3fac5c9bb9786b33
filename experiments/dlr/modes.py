"""The ways to balance that are compared."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from cluster import Cluster, ceph_json, run

DEFAULT, BY_HAND, REWEIGHT, DLR, TRADEWIND = "default", "by hand", "reweight", "dlr", "tradewind"
MODES = (DEFAULT, BY_HAND, REWEIGHT, DLR, TRADEWIND)
# The paper's time of a benchmark, which its interval of 20 s belongs to.
PAPER_SECONDS = 180
PAPER_INTERVAL_SECONDS = 20


def run_mode(mode: str, cluster: Cluster, binary: str, slow: list[int], seconds: float, work, flags=()) -> dict:
    """The result of `work()` while a mode is in force, with what the mode did.

    `slow` are the OSDs that an operator would find slow. `flags` are passed to `tradewind balance ceph`.
    """
    cluster.set_affinities([0.1 if mode == BY_HAND and osd in slow else 1.0 for osd in range(cluster.osds)])
    if mode in (DEFAULT, BY_HAND):
        return work()
    if mode == REWEIGHT:
        return reweight(cluster, seconds, work)
    flags = [*flags, "--policy", "dlr" if mode == DLR else "predict"]
    if mode == DLR and "--dlr-interval" not in flags:
        flags += ["--dlr-interval", f"{PAPER_INTERVAL_SECONDS * min(1.0, seconds / PAPER_SECONDS):.1f}"]
    return balance(cluster, binary, flags, work)


def reweight(cluster: Cluster, seconds: float, work) -> dict:
    """`ceph osd reweight-by-utilization` with its defaults, in the paper's interval."""
    is_over = threading.Event()
    changed = []

    def loop() -> None:
        while not is_over.is_set():
            run("ceph", "osd", "reweight-by-utilization")
            changed.append(sum(osd["weight"] < 1 for osd in ceph_json("osd", "dump")["osds"]))
            is_over.wait(PAPER_INTERVAL_SECONDS * min(1.0, seconds / PAPER_SECONDS))

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        result = work()
    finally:
        is_over.set()
        thread.join()
        cluster.reset_weights()
    return {**result, "reweighted_osds": max(changed, default=0)}


def balance(cluster: Cluster, binary: str, flags: list[str], work) -> dict:
    """`tradewind balance ceph` beside the work."""
    command = [binary, "balance", "ceph", "--json", "--conf", cluster.conf, *flags]
    start = time.monotonic()
    balancer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    rounds = []

    def read() -> None:
        for line in balancer.stdout:
            rounds.append({"at": time.monotonic() - start, **json.loads(line)})

    reader = threading.Thread(target=read)
    reader.start()
    try:
        begin = time.monotonic() - start
        result = work()
        cpu = cpu_seconds(balancer.pid)
        wall = time.monotonic() - start
    finally:
        balancer.send_signal(signal.SIGINT)
        balancer.wait(60)
        reader.join()
    steps = [step(entry, begin) for entry in rounds if entry["decision"] != "wait"]
    affinities = [[round(entry["at"] - begin, 1), [osd["next_affinity"] for osd in entry["osds"]]] for entry in rounds]
    signals = [entry["signals_percent"] for entry in rounds if entry["signals_percent"]]
    correct = [[entry["correct_primaries"], entry["predicted_primaries"]] for entry in rounds]
    return {
        **result, "steps": steps, "affinities": affinities, "signals_percent": signals, "primaries": correct,
        "cpu_of_a_core": cpu / wall, "rounds": len(rounds),
        "explanations": [[round(entry["at"] - begin, 1), entry["explanation"]] for entry in rounds],
    }


def step(entry: dict, begin: float) -> dict:
    return {
        "at": round(entry["at"] - begin, 1), "decision": entry["decision"],
        "predicted_gain": entry["predicted_gain"], "measured_gain": entry["measured_gain"],
    }


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its `ceph` process."""
    ticks = 0
    for process in [pid, *children(pid)]:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
