"""A client with its own kernel (user-mode Linux, one CPU) at one end of an emulated link. Servers that listen on 0.0.0.0 in the
network namespace of the caller are at the other end. Jobs are shell scripts, exchanged with their output in a shared directory."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from lib.testbed import Failed, skip
from network import Network

KERNEL = "/usr/bin/linux.uml"
MEMORY = "3G"
HERE = Path(__file__).resolve().parent
# The network between the near end of the link and the client.
GUEST_NETWORK = "10.78.0.0/30"
# The only network interface of the client.
INTERFACE = "vec0"
TICKS = os.sysconf("SC_CLK_TCK")


class Client:
    """A context manager: the client runs until the end of the context."""

    def __init__(self, binary: Path, network: Network, directory: Path):
        if not os.path.exists(KERNEL):
            skip(f"{KERNEL} is not installed (Debian: user-mode-linux)")
        self.binary, self.network, self.jobs = binary, network, 0
        self.directory = directory / "client"
        self.share = self.directory / "share"

    def __enter__(self) -> "Client":
        self.share.mkdir(parents=True)
        kernel = [KERNEL, f"mem={MEMORY}", f"uml_dir={self.directory}", "umid=kernel", "quiet", "con=null", "con0=null,fd:1"]
        kernel += ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={HERE / 'guest-init'}"]
        # A fixed MAC address: with a random one, neighbours with a cached address would send to the previous client.
        kernel += [f"{INTERFACE}:transport=tap,ifname=guest,depth=128,mac=02:00:00:00:78:02"]
        kernel += [f"SHARE={self.share}", f"EXPERIMENT={HERE}", f"BINARIES={self.binary.parent}"]
        wan = [self.binary, "lab", "wan", *self.network.arguments, "--stats", "--", HERE / "near-end", self.share, *kernel]
        with open(self.directory / "console", "w") as console:
            self.process = subprocess.Popen(wan, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        try:
            self.far = self._wait_for("far", 10).strip()
            self._add_route_to_client()
            self._wait_for("ready", 30)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        (self.share / "end").touch()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            for process in kernel_processes():
                os.kill(process, 9)
            self.process.wait(20)
        # The report of the link.
        self.link_report = [line for line in self._console().splitlines() if line.startswith("tradewind: ")]
        shutil.rmtree(self.directory)

    def run(self, script: str, limit: float = 120) -> str:
        """Runs a script on the client, for at most `limit` seconds, and returns its output."""
        number, self.jobs = self.jobs, self.jobs + 1
        new = self.share / "job.new"
        new.write_text(f"exec timeout -k 5 {limit:g} bash -c {shlex.quote(script)}\n")
        new.rename(self.share / f"job.{number}")
        status = self._wait_for(f"status.{number}", limit + 15).strip()
        output = (self.share / f"output.{number}").read_text(errors="replace")
        if status != "0":
            errors = (self.share / f"errors.{number}").read_text(errors="replace")
            raise Failed(f"a job of the client ended with status {status}: {errors.strip()[-2000:]} {output.strip()[-500:]}")
        return output

    def cpu_seconds(self) -> float:
        """The CPU time that the client has used, in seconds."""
        return sum(cpu_seconds(process) for process in kernel_processes())

    def _add_route_to_client(self) -> None:
        """Adds a route to the network of the client, with the congestion control of the paper. The default of this machine may
        differ, and a network namespace cannot always change it."""
        links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout.splitlines()
        device = next(line.split(":")[1].strip() for line in links if "twwan" in line)
        subprocess.run(["ip", "route", "replace", GUEST_NETWORK, "dev", device, "congctl", "cubic"], check=True)

    def _wait_for(self, name: str, limit: float) -> str:
        path, until = self.share / name, time.monotonic() + limit
        while not path.exists():
            if self.process.poll() is not None:
                console = self._console()
                if "put_fp_registers" in console:
                    skip("user-mode Linux cannot set the registers of this CPU: with AMX they exceed its buffer")
                raise Failed(f"the client ended: {console}")
            if time.monotonic() > until:
                raise Failed(f"the client did not respond within {limit:g} s (waited for {name}): {self._console()}")
            time.sleep(0.02)
        return path.read_text()

    def _console(self) -> str:
        return (self.directory / "console").read_text(errors="replace").strip()[-2000:]


def kernel_processes() -> list[int]:
    """The processes of the kernel of the client: one for each process of the client. This namespace has no other client."""

    def is_kernel(process: str) -> bool:
        try:
            return os.readlink(f"/proc/{process}/exe") == KERNEL
        except OSError:
            return False

    return [int(process) for process in os.listdir("/proc") if process.isdigit() and is_kernel(process)]


def cpu_seconds(process: int) -> float:
    """The CPU time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS
