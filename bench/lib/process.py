"""Servers and generators as processes: start, pause, stop, and their statistics from /proc.

A server is the leader of its own process group; all processes of the group count as the server. Signals are sent
only to groups that were started here. The kernel kills the processes if this program dies.
"""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from lib.servers import Launch, Server

TICKS = os.sysconf("SC_CLK_TCK")
PORTS = range(21000, 22000)


class ServerFailed(Exception):
    """A server did not start, did not stop, or died."""


def killed_with_parent(command: list[str]) -> list[str]:
    """The command, wrapped so that the kernel kills it if this program dies."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else command


def free_ports(count: int) -> list[int]:
    """Unused ports below the ephemeral range of the kernel."""
    found = []
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServerFailed("no free port between 21000 and 21999")


def stat_fields(pid: int | str) -> list[str] | None:
    """The fields of /proc/PID/stat after the command: state, ppid, pgrp, ...; None if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes() -> dict[int, list[str]]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat_fields(entry)):
            found[int(entry)] = fields
    return found


def signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        pass


@dataclass
class Memory:
    anonymous: int = 0
    resident: int = 0


class Running:
    """A started server."""

    def __init__(self, server: Server, data: Path, run: Path):
        self.server = server
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        data.mkdir(parents=True, exist_ok=True)
        self.port, self.side_port = free_ports(2)
        self.endpoint = f"127.0.0.1:{self.port}"
        self.log = run / "server.log"
        launch = Launch(data, run, self.port, self.side_port, server.config)
        command = [str(server.binary), *server.arguments(launch)]
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(run), **server.environment}
        with self.log.open("wb") as log:
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                killed_with_parent(command),
                cwd=run,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def wait_ready(self, limit: float = 60.0) -> float:
        """Polls the health endpoint. Returns the seconds from the start to its first 200."""
        port = self.side_port if self.server.ready_on_side_port else self.port
        while True:
            if self._is_ready(port):
                return time.monotonic() - self.started
            if self.process.poll() is not None:
                raise ServerFailed(f"{self.server.name} ended with status {self.process.returncode}: {self.log_tail()}")
            if time.monotonic() - self.started > limit:
                raise ServerFailed(f"{self.server.name} was not ready within {limit:.0f} s: {self.log_tail()}")
            time.sleep(0.002)

    def _is_ready(self, port: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", self.server.ready_path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-5:]
        return " | ".join(lines) or "(empty log)"

    def pids(self) -> list[int]:
        return [pid for pid, fields in processes().items() if int(fields[2]) == self.pid]

    def cpu_seconds(self) -> float:
        """User and system time of the group and of its terminated children, in seconds."""
        ticks = 0
        for pid in self.pids():
            fields = stat_fields(pid)
            if fields:
                ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        return ticks / TICKS

    def memory(self, pids: list[int] | None = None) -> Memory:
        total = Memory()
        for pid in self.pids() if pids is None else pids:
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            for line in status.splitlines():
                name, _, value = line.partition(":")
                if name == "RssAnon":
                    total.anonymous += int(value.split()[0]) * 1024
                elif name == "VmRSS":
                    total.resident += int(value.split()[0]) * 1024
        return total

    def wait_until_idle(self, limit: float = 5.0) -> None:
        """Waits until the group uses less than 5 % of a CPU, at most `limit` seconds: deferred work of a load must end."""
        end = time.monotonic() + limit
        before = self.cpu_seconds()
        while time.monotonic() < end:
            time.sleep(0.4)
            now = self.cpu_seconds()
            if now - before <= 0.02:
                return
            before = now

    def pause(self) -> None:
        """Stops the group with SIGSTOP while others are measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the group with SIGKILL, as a crash would."""
        self._signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def stop(self, limit: float = 60.0) -> None:
        """SIGTERM, then SIGKILL after `limit` seconds."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            try:
                self.process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                print(f"  {self.server.name} did not stop within {limit:.0f} s of SIGTERM and was killed", flush=True)
        self._signal(signal.SIGKILL)
        self.process.wait(timeout=30)

    def _signal(self, number: int) -> None:
        signal_group(self.pid, number)


class MemoryWatch:
    """Samples the memory of a server every 100 ms during the context and records the peaks."""

    def __init__(self, running: Running):
        self.running = running
        self.peak = Memory()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        pids = self.running.pids()
        while True:
            now = self.running.memory(pids)
            self.peak.anonymous = max(self.peak.anonymous, now.anonymous)
            self.peak.resident = max(self.peak.resident, now.resident)
            if self._end.wait(0.1):
                return

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._end.set()
        self._thread.join()


@dataclass
class Finished:
    status: int
    output: str
    errors: str
    cpu_seconds: float


def run_with_timeout(
    command: list[str], limit: float, environment: dict[str, str] | None = None, directory: Path | None = None
) -> Finished:
    """Runs a generator or client for at most `limit` seconds. Returns its status, output and CPU time."""
    before = os.times()
    child = subprocess.Popen(
        killed_with_parent(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=directory,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        signal_group(child.pid, signal.SIGKILL)
        output, errors = child.communicate()
        errors += f"\nkilled after {limit:.0f} s"
    except BaseException:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
        raise
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Finished(child.returncode, output, errors, used)
