"""The three networks of Ou 2015, section III-B, as `tradewind lab wan` makes them, and one without bounds to see what the client
can do at best."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from lib.world import Failed


@dataclass(frozen=True)
class Network:
    name: str
    about: str
    # Of `lab wan`, where each direction has all of it.
    arguments: tuple[str, ...]

    def known_to(self, binary: Path) -> "Network":
        """As this build of `lab wan` can make it; the error says what it cannot."""
        asked = subprocess.run([binary, "lab", "wan", "--help"], capture_output=True, text=True, timeout=30)
        if asked.returncode != 0:
            raise Failed(f"{binary} has no `lab wan`: {asked.stderr.strip()}")
        missing = [each for each in self.arguments if each.startswith("--") and each not in asked.stdout]
        if missing:
            raise Failed(
                f"the network {self.name} needs {', '.join(missing)}, which `lab wan` of {binary} does not have; "
                "take a newer build, or --network ideal,delay"
            )
        # The way back to the client leads through a TUN device, which the kernel's own emulation does not have.
        more, about = (("--via", "relay") if "--via" in asked.stdout else ()), self.about
        if "--rate" in self.arguments and "--queue" in asked.stdout:
            more, about = (*more, *QUEUE), f"{about}, 1000 packets queue"
        return replace(self, about=about, arguments=(*self.arguments, *more))


RATE = ("--rate", "100mbit")
# The same in MiB a second.
LINK_MIB = 100e6 / 8 / 2**20
# What netem queues, which WANem is made of. A build that cannot be told so queues one bandwidth-delay product.
QUEUE = ("--queue", f"{1000 * 1500}B")
# A round trip has twice the delay. The paper does not say whether its jitter is of one direction or of both; here each
# direction has half of its variance, so that the round trip has all of it: 10 ms / sqrt(2).
LOSS_AND_JITTER = ("--jitter", "7.07ms", "--jitter-kind", "normal", "--loss", "0.1%")

NETWORKS = {
    network.name: network
    for network in (
        Network("unshaped", "no delay, no bound on the rate", ("--delay", "0ms")),
        Network("ideal", "100 Mbit/s, no delay", ("--delay", "0ms", *RATE)),
        Network("delay", "100 Mbit/s, a round trip of 50 ms", ("--delay", "25ms", *RATE)),
        Network(
            "realistic",
            "100 Mbit/s, a round trip of 50 ms with a normal jitter of 10 ms, 0.1 % lost in each direction",
            ("--delay", "25ms", *RATE, *LOSS_AND_JITTER),
        ),
    )
}
# Jitter does not let packets overtake each other unless `lab wan` is told to.
ORDER = "packets are not reordered"
