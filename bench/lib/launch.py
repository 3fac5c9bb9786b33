"""Runs one command and writes its elapsed time, CPU time and peak memory as counted by the kernel.

This is a separate program because the kernel includes the memory of the parent at the time of the fork in the peak memory of
a command. The benchmark itself would dominate it; this small program, run without site modules, does not. Usage: launch.py REPORT COMMAND [ARGUMENT...]
"""

import json
import os
import sys
import time


def main() -> int:
    report, *command = sys.argv[1:]
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.execvp(command[0], command)
        except OSError as reason:
            print(f"{command[0]}: {reason.strerror}", file=sys.stderr)
        finally:
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    cost = {
        "seconds": time.monotonic() - start,
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "peak_resident_bytes": usage.ru_maxrss * 1024,
    }
    with open(report, "w") as file:
        json.dump(cost, file)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
