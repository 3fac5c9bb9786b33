"""Tools that copy directories to a store and back, as the clients of profiles run them."""

import filecmp
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lib.world import PORT, ROOT, Cost, Failed, World

from profiles import Profile

BUCKET = "transfers"
# On the path, or built by bench/peers.
PEERS = ROOT / "bench" / ".cache" / "bin"
# Our own command without and with a profile of the store, and others.
OURS = ("untuned", "tuned")
OTHERS = ("mc", "rclone", "s5cmd")


@dataclass(frozen=True)
class Load:
    """Objects that are moved: how many of which size."""

    name: str
    count: int
    size: int


def make(directory: Path, load: Load) -> Path:
    place = directory / load.name
    place.mkdir()
    for n in range(load.count):
        (place / f"object-{n:04}").write_bytes(os.urandom(load.size))
    return place


def peer(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(PEERS))


class Tools:
    """Commands that copy a directory there and back."""

    def __init__(self, world: World, profile: Profile):
        self.world, self.profile = world, profile
        self.profiles = {name: world.directory / f"profiles-{name}" for name in OURS}
        # Of a client with a slow disk: there while a command runs.
        self.disk = world.directory / "files" if profile.slow_disk else None
        self.others = {name: path for name in OTHERS if (path := peer(name))}

    def names(self, only: list[str] | None = None) -> list[str]:
        """What can be measured; of the others only these, where any are named."""
        if missing := [name for name in only or () if name not in (*OURS, *self.others)]:
            raise Failed(f"there is no {' and no '.join(missing)} here: see bench/peers")
        return [name for name in (*OURS, *self.others) if not only or name in (*only, "tuned")]

    def program(self, tool: str) -> Path | str:
        return self.others.get(tool, self.world.binary)

    def tune(self) -> Cost:
        """Finds out of the store what our own command with a profile then knows."""
        files, before = ([], ()) if self.disk is None else (["--files", self.disk / "probes"], (f"mkdir {self.disk}/probes",))
        return self._run([self.world.binary, "tune", f"s3://{BUCKET}", *files], "tuned", before)

    def upload(self, tool: str, source: Path, name: str) -> Cost:
        there, before = f"{BUCKET}/{name}/", ()
        if self.disk:
            before = (f"cp -r {source} {self.disk}/source", "sync", "echo 3 > /proc/sys/vm/drop_caches")
            source = self.disk / "source"
        arguments = {
            "mc": ["cp", "--quiet", "--recursive", f"{source}/", f"far/{there}"],
            "rclone": ["copy", source, f"far:{there}"],
            "s5cmd": ["cp", f"{source}/*", f"s3://{there}"],
        }.get(tool, ["cp", "-r", f"{source}/", f"s3://{there}"])
        return self._run([self.program(tool), *arguments], tool, before)

    def download(self, tool: str, name: str, to: Path) -> Cost:
        there, before, after = f"{BUCKET}/{name}/", (), ()
        if self.disk:
            before, after, to = (f"mkdir {self.disk}/back",), (f"cp -r {self.disk}/back/. {to}",), self.disk / "back"
        arguments = {
            "mc": ["cp", "--quiet", "--recursive", f"far/{there}", f"{to}/"],
            "rclone": ["copy", f"far:{there}", to],
            "s5cmd": ["cp", f"s3://{there}*", f"{to}/"],
        }.get(tool, ["cp", "-r", f"s3://{there}", f"{to}/"])
        return self._run([self.program(tool), *arguments], tool, before, after)

    def _run(self, command: list, tool: str, before: tuple = (), after: tuple = ()) -> Cost:
        """Behind the line, as this client. What comes before and after the command does not count."""
        data = self.profiles.get(tool, self.profiles["untuned"])
        keys = self.world.environment()
        url = f"http://$TRADEWIND_LAB_FAR:{PORT}"
        setup = {
            "mc": f'MC_HOST_far="http://{keys["AWS_ACCESS_KEY_ID"]}:{keys["AWS_SECRET_ACCESS_KEY"]}@$TRADEWIND_LAB_FAR:{PORT}"',
            "rclone": f'RCLONE_CONFIG_FAR_ENDPOINT="{url}" RCLONE_CONFIG_FAR_TYPE=s3 RCLONE_CONFIG_FAR_PROVIDER=Other '
            "RCLONE_CONFIG_FAR_ENV_AUTH=true RCLONE_CONFIG_FAR_NO_CHECK_BUCKET=true",
            "s5cmd": f'S3_ENDPOINT_URL="{url}"',
        }.get(tool, f"XDG_DATA_HOME={data}")
        script = ["set -e", *before, "begun=$(date +%s%N)", f'{setup} "$@"', "ended=$(date +%s%N)", *after, 'echo "took $((ended - begun))"']
        ran = self.world.behind_as(self.profile.line(), self.profile.wrap(self.world, ["sh", "-c", "\n".join(script), "sh", *map(str, command)]), limit=1200)
        said, _, took = ran.output.rpartition("took ")
        return Cost(int(took) / 1e9, ran.cpu_seconds, ran.peak_mib, said)


def same(a: Path, b: Path) -> None:
    names = sorted(path.name for path in a.iterdir())
    _, differs, missing = filecmp.cmpfiles(a, b, names, shallow=False)
    if differs or missing:
        raise Failed(f"{len(differs)} objects came back changed, {len(missing)} not at all")
