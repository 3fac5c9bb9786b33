"""Runs one command to its end and writes its time, processor time and peak memory, as the kernel counted them.

A program of its own, because the kernel counts the memory of the process that starts a command into that
command's peak: what the benchmark itself holds would be the least that any client is seen to use. This small one,
started without the site's modules, is all that is counted so. Usage: launch.py REPORT COMMAND [ARGUMENT...]
"""

import json
import os
import sys
import time


def main() -> int:
    report, *command = sys.argv[1:]
    began = time.monotonic()
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
        "seconds": time.monotonic() - began,
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
