"""Transfer tools that copy directories to a store and back, run as the client of an environment."""

import filecmp
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lib.testbed import PORT, ROOT, Cost, Failed, Testbed

from environments import Environment

BUCKET = "transfers"
# Programs that are not on the PATH are those installed by bench/peers.
PEERS = ROOT / "bench" / ".cache" / "bin"
# `tradewind cp` without and with a tuning profile of the store, and other tools.
OURS = ("untuned", "tuned")
OTHERS = ("mc", "rclone", "s5cmd")


@dataclass(frozen=True)
class Workload:
    """Number and size of the objects of a transfer."""

    name: str
    count: int
    size: int


def create_files(directory: Path, workload: Workload) -> Path:
    source = directory / workload.name
    source.mkdir()
    for n in range(workload.count):
        (source / f"object-{n:04}").write_bytes(os.urandom(workload.size))
    return source


def find_program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(PEERS))


class Tools:
    """Commands that upload and download a directory."""

    def __init__(self, testbed: Testbed, environment: Environment):
        self.testbed, self.environment = testbed, environment
        self.profiles = {name: testbed.directory / f"profiles-{name}" for name in OURS}
        # The mount point of the slow disk, which is mounted while a command runs.
        self.disk = testbed.directory / "files" if environment.slow_disk else None
        self.others = {name: path for name in OTHERS if (path := find_program(name))}

    def names(self, only: list[str] | None = None) -> list[str]:
        """The tools to measure: all that are installed, or the given ones and `tuned`."""
        if missing := [name for name in only or () if name not in (*OURS, *self.others)]:
            raise Failed(f"not installed: {', '.join(missing)} (see bench/peers)")
        return [name for name in (*OURS, *self.others) if not only or name in (*only, "tuned")]

    def program(self, tool: str) -> Path | str:
        return self.others.get(tool, self.testbed.binary)

    def tune(self) -> Cost:
        """Creates the tuning profile of the store that `tuned` uses."""
        files, before = ([], ()) if self.disk is None else (["--files", self.disk / "probes"], (f"mkdir {self.disk}/probes",))
        return self._run([self.testbed.binary, "tune", f"s3://{BUCKET}", *files], "tuned", before)

    def upload(self, tool: str, source: Path, name: str) -> Cost:
        prefix, before = f"{BUCKET}/{name}/", ()
        if self.disk:
            before = (f"cp -r {source} {self.disk}/source", "sync", "echo 3 > /proc/sys/vm/drop_caches")
            source = self.disk / "source"
        arguments = {
            "mc": ["cp", "--quiet", "--recursive", f"{source}/", f"far/{prefix}"],
            "rclone": ["copy", source, f"far:{prefix}"],
            "s5cmd": ["cp", f"{source}/*", f"s3://{prefix}"],
        }.get(tool, ["cp", "-r", f"{source}/", f"s3://{prefix}"])
        return self._run([self.program(tool), *arguments], tool, before)

    def download(self, tool: str, name: str, to: Path) -> Cost:
        prefix, before, after = f"{BUCKET}/{name}/", (), ()
        if self.disk:
            before, after, to = (f"mkdir {self.disk}/back",), (f"cp -r {self.disk}/back/. {to}",), self.disk / "back"
        arguments = {
            "mc": ["cp", "--quiet", "--recursive", f"far/{prefix}", f"{to}/"],
            "rclone": ["copy", f"far:{prefix}", to],
            "s5cmd": ["cp", f"s3://{prefix}*", f"{to}/"],
        }.get(tool, ["cp", "-r", f"s3://{prefix}", f"{to}/"])
        return self._run([self.program(tool), *arguments], tool, before, after)

    def _run(self, command: list, tool: str, before: tuple = (), after: tuple = ()) -> Cost:
        """Runs a command over the link, as this client. The times of `before` and `after` do not count."""
        data = self.profiles.get(tool, self.profiles["untuned"])
        keys = self.testbed.environment()
        url = f"http://$TRADEWIND_LAB_FAR:{PORT}"
        setup = {
            "mc": f'MC_HOST_far="http://{keys["AWS_ACCESS_KEY_ID"]}:{keys["AWS_SECRET_ACCESS_KEY"]}@$TRADEWIND_LAB_FAR:{PORT}"',
            "rclone": f'RCLONE_CONFIG_FAR_ENDPOINT="{url}" RCLONE_CONFIG_FAR_TYPE=s3 RCLONE_CONFIG_FAR_PROVIDER=Other '
            "RCLONE_CONFIG_FAR_ENV_AUTH=true RCLONE_CONFIG_FAR_NO_CHECK_BUCKET=true",
            "s5cmd": f'S3_ENDPOINT_URL="{url}"',
        }.get(tool, f"XDG_DATA_HOME={data}")
        script = ["set -e", *before, "start=$(date +%s%N)", f'{setup} "$@"', "end=$(date +%s%N)", *after, 'echo "elapsed $((end - start))"']
        wrapped = self.environment.wrap(self.testbed, ["sh", "-c", "\n".join(script), "sh", *map(str, command)])
        cost = self.testbed.run_remote_command(self.environment.link(), wrapped, limit=1200)
        output, _, elapsed = cost.output.rpartition("elapsed ")
        return Cost(int(elapsed) / 1e9, cost.cpu_seconds, cost.peak_mib, output)


def require_equal(a: Path, b: Path) -> None:
    names = sorted(path.name for path in a.iterdir())
    _, differs, missing = filecmp.cmpfiles(a, b, names, shallow=False)
    if differs or missing:
        raise Failed(f"{len(differs)} objects differ and {len(missing)} are missing after the transfer")
