"""Writes and reads the files of one cell, on the client. It stands in for `tradewind bench posix` as long as that is not there:
it says what that will say, in one JSON line for each phase, and is to be removed then.

    workload.py DIRECTORY CELL SECONDS      the cell as JSON
"""

import json
import mmap
import os
import sys
import threading
import time

INTERFACE = "vec0"
FLAGS = {"direct": os.O_DIRECT, "sync": os.O_SYNC, "default": 0}
# Contents begin at another of so many bytes of each file, so that one is not taken for another.
SHIFTS, SHIFT = 64, 4096
QUIET, QUIET_LIMIT = 0.3, 8.0
# So many files of each thread make a steady state.
STEADY = 8


def carried() -> int:
    """Bytes of the interface, both ways."""
    for line in open("/proc/net/dev"):
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            fields = counts.split()
            return int(fields[0]) + int(fields[8])
    raise SystemExit(f"there is no interface {INTERFACE}")


def quiet() -> int:
    """Waits until nothing more comes."""
    until = time.monotonic() + QUIET_LIMIT
    last, since = carried(), time.monotonic()
    while time.monotonic() < min(until, since + QUIET):
        time.sleep(0.05)
        now = carried()
        # Acknowledgements of connections that do nothing are no access.
        if now > last + 200:
            last, since = now, time.monotonic()
    return carried()


class Run:
    def __init__(self, directory: str, cell: dict, seconds: float):
        self.cell, self.seconds, self.directory = cell, seconds, directory
        self.size, self.unit = cell["size"], cell["unit"]
        self.content = mmap.mmap(-1, self.size + SHIFTS * SHIFT)
        self.content.write(os.urandom(len(self.content)))
        self.written: list[list[str]] = [[] for _ in range(cell["threads"])]
        self.failures: list[str] = []

    def start_of(self, path: str) -> int:
        thread, number = map(int, os.path.basename(path).split("-"))
        return (thread * 7 + number) % SHIFTS * SHIFT

    def write(self, path: str, until: float) -> int:
        at, start = 0, self.start_of(path)
        source = memoryview(self.content)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS[self.cell["form"]], 0o600)
        try:
            while at < self.size and (at == 0 or self.cell["scope"] != "unit" or time.monotonic() < until):
                at += os.pwrite(file, source[start + at : start + min(at + self.unit, self.size)], at)
        finally:
            os.close(file)
        return at

    def complete(self, path: str, at: int) -> None:
        """Writes what is left of a file that took too long."""
        start = self.start_of(path)
        with open(path, "r+b", buffering=0) as file:
            file.seek(at)
            while at < self.size:
                at += file.write(memoryview(self.content)[start + at : start + min(at + (1 << 20), self.size)])

    def read(self, path: str, until: float, into: mmap.mmap) -> int:
        at, start = 0, self.start_of(path)
        file = os.open(path, os.O_RDONLY | FLAGS[self.cell["form"]])
        try:
            while at < self.size and (at == 0 or self.cell["scope"] != "unit" or time.monotonic() < until):
                got = os.preadv(file, [memoryview(into)[: min(self.unit, self.size - at)]], at)
                if got == 0 or memoryview(into)[:got] != memoryview(self.content)[start + at : start + at + got]:
                    raise OSError(f"{path} holds something else at {at}")
                at += got
        finally:
            os.close(file)
        return at

    def thread(self, phase: str, thread: int, begin: threading.Barrier, spans: list) -> None:
        into = mmap.mmap(-1, self.unit) if phase == "read" else None
        begin.wait()
        until, number = time.monotonic() + self.seconds, 0
        while number == 0 or (self.cell["scope"] == "batch" and time.monotonic() < until):
            try:
                if phase == "write":
                    path = f"{self.directory}/{thread}-{number}"
                    started = time.monotonic()
                    length = self.write(path, until)
                    ended = time.monotonic()
                    self.written[thread].append(path)
                    if length < self.size:
                        self.complete(path, length)
                else:
                    if number >= len(self.written[thread]):
                        break
                    started = time.monotonic()
                    length = self.read(self.written[thread][number], until, into)
                    ended = time.monotonic()
                spans.append((started, ended, length))
            except OSError as error:
                self.failures.append(str(error))
                break
            number += 1

    def phase(self, phase: str) -> None:
        self.failures = []
        before = quiet()
        threads = self.cell["threads"]
        spans: list[list] = [[] for _ in range(threads)]
        begin = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=self.thread, args=(phase, n, begin, spans[n])) for n in range(threads)]
        for worker in workers:
            worker.start()
        begin.wait()
        started = time.monotonic()
        for worker in workers:
            worker.join()
        after = carried()
        os.sync()
        settled = quiet()
        # Until the first thread has nothing left to do all are at work. Of few files it is not known how much of them was done
        # by then: one that ends late may have been served last, so there all of the time counts.
        is_steady = sum(map(len, spans)) >= STEADY * threads
        end = (min if is_steady else max)((each[-1][1] for each in spans if each), default=started)
        done = sum(n * max(0.0, min(b, end) - a) / (b - a) for each in spans for a, b, n in each)
        files = sum(max(0.0, min(b, end) - a) / (b - a) for each in spans for a, b, _ in each)
        seconds = end - started
        total = sum(n for each in spans for _, _, n in each)
        rate = {"mean": done / seconds if seconds else 0.0}
        line = self.cell | {"kind": "posix", "what": "access", "phase": phase, "seconds": seconds, "bytes": total}
        line |= {"files": sum(map(len, spans)), "bytes_per_second": rate}
        line |= {"files_per_second": {"mean": files / seconds if seconds else 0.0}}
        line |= {"wire": {"total": after - before, "settled": settled - before}, "failures": {f: 1 for f in self.failures}}
        print(json.dumps(line), flush=True)


def main() -> None:
    directory, cell, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    os.makedirs(directory)
    run = Run(directory, cell, seconds)
    run.phase("write")
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("3")
    run.phase("read")
    # Small ones take no room, and as long to remove as to make.
    if cell["size"] >= 1 << 20:
        for path in sum(run.written, []):
            os.remove(path)


if __name__ == "__main__":
    main()
