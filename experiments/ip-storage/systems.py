"""The three systems of Ou 2015, section III: their servers, and how the client mounts them. The files of the servers are on ext4
in memory, so that the link is the bottleneck. Each class states its differences from the paper."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

from lib.testbed import ROOT, Failed, skip

NFS_PORT, ISCSI_PORT, SWIFT_PORT = 2049, 3260, 8080
TARGET = "iqn.2026-01.tradewind:disk"
IMAGE_MIB = 4096
# Initialize everything now, not lazily during the measurement.
MAKE_EXT4 = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]


class System:
    """A context manager: the servers run until the end of the context, in the network namespace of the caller."""

    name: str
    title: str
    # Required programs and their Debian packages.
    programs: dict[str, str]
    # Forms of access that make a difference. The object client ignores them (section IV-A).
    forms: tuple[str, ...] = ("direct", "sync", "default")

    def __init__(self, directory: Path):
        self.directory = directory / self.name
        self.processes: list[subprocess.Popen] = []
        self.mounts: list[Path] = []

    @classmethod
    def check(cls) -> None:
        for program, package in cls.programs.items():
            if not shutil.which(program):
                skip(f"{program} is not installed (Debian: {package})")

    def __enter__(self) -> "System":
        self.directory.mkdir()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.stop()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        for mount in self.mounts:
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.directory)

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        pass

    def mount(self, far: str) -> str:
        """A script for the client that mounts the system on /mnt/NAME."""
        raise NotImplementedError

    def unmount(self) -> str:
        return f"umount /mnt/{self.name}"

    def image(self) -> Path:
        image = self.directory / "image"
        subprocess.run(["truncate", "-s", f"{IMAGE_MIB}M", image], check=True)
        subprocess.run([*MAKE_EXT4, image], check=True)
        return image

    def mounted(self, name: str) -> Path:
        """Mounts a new ext4 file system."""
        directory = self.directory / name
        directory.mkdir()
        subprocess.run(["mount", "-o", "loop,noatime", self.image(), directory], check=True)
        self.mounts.append(directory)
        return directory

    def launch(self, *command: object, **environment: str) -> subprocess.Popen:
        with open(self.directory / "log", "a") as log:
            process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | environment
            )
        self.processes.append(process)
        return process

    def wait_for(self, port: int, limit: float = 20) -> None:
        until = time.monotonic() + limit
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                    log = (self.directory / "log").read_text(errors="replace")[-2000:]
                    raise Failed(f"{self.title} does not respond: {log}") from None
                time.sleep(0.05)


class File(System):
    """NFSv4.1 of nfs-ganesha. It has the guarantee of the export option `sync` of the kernel server: data reported as stable is
    durable. The client is that of the kernel, with one connection."""

    name, title = "file", "NFS"
    programs = {"ganesha.nfsd": "nfs-ganesha nfs-ganesha-vfs", "mount.nfs4": "nfs-common"}

    def start(self) -> None:
        export, state = self.mounted("export"), self.directory / "state"
        state.mkdir()
        settings = self.directory / "settings"
        settings.write_text(f"""
NFS_CORE_PARAM {{
    NFS_Port = {NFS_PORT}; Protocols = 4;
    Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false;
}}
NFS_KRB5 {{ Active_krb5 = false; }}
# No grace period for old clients, and numeric user IDs, because there is no user directory.
NFSv4 {{
    Graceless = true; RecoveryBackend = fs; RecoveryRoot = "{state}"; Only_Numeric_Owners = true; Minor_Versions = 1;
}}
EXPORT {{
    Export_Id = 1; Path = "{export}"; Pseudo = /export; Protocols = 4; Transports = TCP; Access_Type = RW;
    Squash = No_Root_Squash; SecType = sys; MaxRead = 1048576; MaxWrite = 1048576; FSAL {{ Name = VFS; }}
}}
LOG {{ Default_Log_Level = WARN; }}
""")
        self.launch("ganesha.nfsd", "-F", "-f", settings, "-L", self.directory / "log", "-p", self.directory / "pid")
        self.wait_for(NFS_PORT)

    def mount(self, far: str) -> str:
        return (
            f"mkdir -p /mnt/file && mount -t nfs4 -o vers=4.1,port={NFS_PORT},sec=sys,nconnect=1 {far}:/export /mnt/file && "
            "grep ' /mnt/file ' /proc/mounts"
        )


class Block(System):
    """Ext4 of the client on a disk that tgt exports over iSCSI, with one connection of one session. The negotiated parameters are
    the defaults of tgt and of the RFC: write data beyond 8 KiB waits for an R2T, one for each 256 KiB."""

    name, title = "block", "iSCSI"
    programs = {"tgtd": "tgt", "tgtadm": "tgt", "iscsiadm": "open-iscsi", "mkfs.ext4": "e2fsprogs"}

    def start(self) -> None:
        # Places the control socket in this directory instead of the compiled-in path.
        control = {"TGT_IPC_SOCKET": str(self.directory / "control")}
        image = self.image()
        self.launch("tgtd", "-f", "--iscsi", f"portal=0.0.0.0:{ISCSI_PORT}", **control)
        self.wait_for(ISCSI_PORT)
        for arguments in (
            ["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET],
            ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", str(image)],
            ["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ):
            self._admin(arguments, check=True)

    def stop(self) -> None:
        # tgtd ignores signals while it has targets.
        if (self.directory / "control.0").exists():
            self._admin(["--op", "delete", "--mode", "target", "--tid", "1", "--force"])
            self._admin(["--op", "delete", "--mode", "system"])

    def _admin(self, arguments: list[str], check: bool = False) -> None:
        environment = os.environ | {"TGT_IPC_SOCKET": str(self.directory / "control")}
        done = subprocess.run(["tgtadm", "--lld", "iscsi", *arguments], env=environment, capture_output=True, text=True, timeout=20)
        if check and done.returncode != 0:
            raise Failed(f"tgtadm {' '.join(arguments)}: {done.stderr.strip()}")

    def mount(self, far: str) -> str:
        return f"""set -e
mount -t tmpfs tmpfs /etc/iscsi
echo 'node.startup = manual' > /etc/iscsi/iscsid.conf
echo 'InitiatorName=iqn.2026-01.tradewind:client' > /etc/iscsi/initiatorname.iscsi
iscsid
iscsiadm -m discovery -t sendtargets -p {far}:{ISCSI_PORT} > /run/iscsi.log
iscsiadm -m node -T {TARGET} -p {far}:{ISCSI_PORT} --login >> /run/iscsi.log
for _ in $(seq 100); do [ ! -b /dev/sda ] || break; sleep 0.1; done
mkdir -p /mnt/block
mount -t ext4 /dev/sda /mnt/block
grep ' /mnt/block ' /proc/mounts
cd /sys/block/sda
grep . queue/scheduler queue/read_ahead_kb queue/max_sectors_kb queue/write_cache device/queue_depth
iscsiadm -m session -P 2 | grep -E 'R2T|Burst|SegmentLength|ImmediateData|Digest' | tr -d '\\t'
"""

    def unmount(self) -> str:
        return "umount /mnt/block && iscsiadm -m node -u > /run/iscsi.log"


class Object(System):
    """Swift with all its servers on one machine, and s3fs as the client. Like CloudFuse, s3fs downloads a file into a temporary
    file on the first read, uploads all of it on close, has one connection per request in flight, and ignores O_DIRECT. It uses
    the S3 API of Swift and requests the attributes of a file once or twice. One replica instead of the paper's three, because
    the two CPUs would otherwise be the bottleneck."""

    name, title = "object", "Swift"
    programs = {"swift-proxy-server": "swift-proxy", "swift-object-server": "swift-object", "s3fs": "s3fs"}
    forms = ("default",)
    laboratory = ROOT / "tests" / "labs" / "swift.sh"

    def start(self) -> None:
        self.mounted("srv")
        settings = {"PORT": str(SWIFT_PORT), "LISTEN": "0.0.0.0", "S3": "1", "REPLICAS": "1"}
        command = [self.laboratory, "up", self.directory]
        up = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120)
        if up.returncode == 77:
            skip(up.stderr.strip())
        if up.returncode != 0:
            raise Failed(f"Swift did not start: {up.stderr.strip()[-2000:]}")
        settings = dict(line.split("=", 1) for line in up.stdout.split())
        self.user, self.key = settings["USER"], settings["KEY"]
        request = urllib.request.Request(settings["AUTH_URL"], headers={"X-Storage-User": self.user, "X-Storage-Pass": self.key})
        with urllib.request.urlopen(request, timeout=30) as response:
            token, account = response.headers["X-Auth-Token"], response.headers["X-Storage-Url"]
        request = urllib.request.Request(f"{account}/data", headers={"X-Auth-Token": token}, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    def stop(self) -> None:
        subprocess.run([self.laboratory, "down", self.directory], check=True, timeout=60)

    def mount(self, far: str) -> str:
        # The options minimize the number of requests: no multipart uploads, no directory formats of other programs. Signature
        # version 2 needs no digest of the body, which would take as long as sending it.
        settings = "use_path_request_style,sigv2,nomultipart,notsup_compat_dir,enable_noobj_cache"
        settings += ",multireq_max=100,max_stat_cache_size=1000000,tmpdir=/run/object,readwrite_timeout=300"
        return f"""set -e
mkdir -p /mnt/object /run/object
export AWS_ACCESS_KEY_ID={self.user} AWS_SECRET_ACCESS_KEY={self.key}
export AWSACCESSKEYID=$AWS_ACCESS_KEY_ID AWSSECRETACCESSKEY=$AWS_SECRET_ACCESS_KEY
s3fs data /mnt/object -o url=http://{far}:{SWIFT_PORT},{settings},logfile=/run/object.log
for _ in $(seq 300); do if mountpoint -q /mnt/object; then grep ' /mnt/object ' /proc/mounts; exit; fi; sleep 0.1; done
cat /run/object.log >&2
exit 1
"""


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (File, Block, Object)}
