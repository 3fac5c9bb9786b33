"""Everything here happens in namespaces of its own: of networks, processes and mounts.

Whatever ends the program, its servers, its client and its mounts end with it. A thin parent stays outside, hands signals on
and removes the directory that all of it used.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

INSIDE = "TRADEWIND_EXPERIMENT_INSIDE"


def go_apart(scratch: Path | None) -> Path:
    """Runs this program again in namespaces of its own, and ends with its status. There it answers the directory."""
    if inside := os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return Path(inside)
    directory = tempfile.mkdtemp(prefix="tradewind-ip.", dir=scratch or "/dev/shm")
    # It ends with this program, and everything in it with it.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", sys.executable, *sys.argv]
    apart = subprocess.Popen(command, env=os.environ | {INSIDE: directory}, start_new_session=True)

    def end(number: int, _) -> None:
        print(f"ended by {signal.Signals(number).name}", file=sys.stderr)
        apart.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        status = apart.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)
