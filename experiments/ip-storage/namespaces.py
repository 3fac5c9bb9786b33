"""Runs the experiment in its own network, process and mount namespaces.

Servers, client and mounts end with the program, however it ends. A small parent process stays outside the namespaces, ends them
on a signal, and removes the scratch directory.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

DIRECTORY = "TRADEWIND_EXPERIMENT_DIRECTORY"


def enter_namespaces(scratch: Path | None) -> Path:
    """Restarts this program in new namespaces and exits with its status. In the namespaces, returns the scratch directory."""
    if inside := os.environ.get(DIRECTORY):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return Path(inside)
    directory = tempfile.mkdtemp(prefix="tradewind-ip.", dir=scratch or "/dev/shm")
    # The process namespace ends with this program.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", sys.executable, *sys.argv]
    child = subprocess.Popen(command, env=os.environ | {DIRECTORY: directory}, start_new_session=True)

    def end(number: int, _) -> None:
        print(f"ended by {signal.Signals(number).name}", file=sys.stderr)
        child.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        status = child.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)
