"""A client with a kernel of its own (user-mode Linux, one processor) at one end of an emulated link. What listens on 0.0.0.0 of the
caller's network is at the other end. Jobs are shell scripts; they and what they say go through a directory that both see."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from lib.world import Failed, give_up
from network import Network

KERNEL = "/usr/bin/linux.uml"
MEMORY = "3G"
HERE = Path(__file__).resolve().parent
# What the client's network is known by.
GUEST_NETWORK = "10.78.0.0/30"
# Its only interface there.
INTERFACE = "vec0"
TICKS = os.sysconf("SC_CLK_TCK")


class Client:
    """Use it as a context: the client is there until its end."""

    def __init__(self, binary: Path, network: Network, directory: Path):
        if not os.path.exists(KERNEL):
            give_up(f"{KERNEL} is not there (Debian: user-mode-linux)")
        self.binary, self.network, self.jobs = binary, network, 0
        self.directory = directory / "client"
        self.share = self.directory / "share"

    def __enter__(self) -> "Client":
        self.share.mkdir(parents=True)
        kernel = [KERNEL, f"mem={MEMORY}", f"uml_dir={self.directory}", "umid=kernel", "quiet", "con=null", "con0=null,fd:1"]
        kernel += ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={HERE / 'guest-init'}"]
        # A fixed one: with a random one, whoever remembers the last client sends to that.
        kernel += [f"{INTERFACE}:transport=tap,ifname=guest,depth=128,mac=02:00:00:00:78:02"]
        kernel += [f"SHARE={self.share}", f"EXPERIMENT={HERE}", f"BINARIES={self.binary.parent}"]
        wan = [self.binary, "lab", "wan", *self.network.arguments, "--counts", "--", HERE / "near-end", self.share, *kernel]
        with open(self.directory / "console", "w") as console:
            self.process = subprocess.Popen(wan, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        try:
            self.far = self._wait_for("far", 10).strip()
            self._lead_back()
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
            for process in kernels():
                os.kill(process, 9)
            self.process.wait(20)
        # What the link says of itself.
        self.carried = [line for line in self._console().splitlines() if line.startswith("tradewind: ")]
        shutil.rmtree(self.directory)

    def run(self, script: str, limit: float = 120) -> str:
        """Runs a script there, for so many seconds at the most; answers what it printed."""
        number, self.jobs = self.jobs, self.jobs + 1
        new = self.share / "job.new"
        new.write_text(f"exec timeout -k 5 {limit:g} bash -c {shlex.quote(script)}\n")
        new.rename(self.share / f"job.{number}")
        status = self._wait_for(f"status.{number}", limit + 15).strip()
        said = (self.share / f"output.{number}").read_text(errors="replace")
        if status != "0":
            errors = (self.share / f"errors.{number}").read_text(errors="replace")
            raise Failed(f"a job of the client ended with {status}: {errors.strip()[-2000:]} {said.strip()[-500:]}")
        return said

    def processor_seconds(self) -> float:
        """What the client took of the machine's processors so far."""
        return sum(processor_seconds(process) for process in kernels())

    def _lead_back(self) -> None:
        """A plain route to the client's network, with the congestion control of the paper: the default of this machine may be
        another, and a network namespace may not always choose."""
        links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout.splitlines()
        device = next(line.split(":")[1].strip() for line in links if "twwan" in line)
        subprocess.run(["ip", "route", "replace", GUEST_NETWORK, "dev", device, "congctl", "cubic"], check=True)

    def _wait_for(self, name: str, limit: float) -> str:
        path, until = self.share / name, time.monotonic() + limit
        while not path.exists():
            if self.process.poll() is not None:
                console = self._console()
                if "put_fp_registers" in console:
                    give_up("user-mode Linux cannot set the registers of this processor: those with AMX have more than it has room for")
                raise Failed(f"the client ended: {console}")
            if time.monotonic() > until:
                raise Failed(f"the client did not answer within {limit:g} s (waited for {name}): {self._console()}")
            time.sleep(0.02)
        return path.read_text()

    def _console(self) -> str:
        return (self.directory / "console").read_text(errors="replace").strip()[-2000:]


def kernels() -> list[int]:
    """The processes of the client's kernel, of which there is one for each of its processes. No other is in this namespace."""

    def is_one(process: str) -> bool:
        try:
            return os.readlink(f"/proc/{process}/exe") == KERNEL
        except OSError:
            return False

    return [int(process) for process in os.listdir("/proc") if process.isdigit() and is_one(process)]


def processor_seconds(process: int) -> float:
    """With those of its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS
