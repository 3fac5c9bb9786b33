"""The three networks of Ou 2015, section III-B, emulated by `tradewind lab wan`, and an unlimited one that shows the maximum of
the client."""

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from lib.testbed import Failed


@dataclass(frozen=True)
class Network:
    name: str
    about: str
    # Arguments of `lab wan`, which apply to each direction.
    arguments: tuple[str, ...]

    def for_binary(self, binary: Path) -> "Network":
        """The network with the options that this build of `lab wan` supports; fails if required ones are missing."""
        help_text = subprocess.run([binary, "lab", "wan", "--help"], capture_output=True, text=True, timeout=30)
        if help_text.returncode != 0:
            raise Failed(f"{binary} has no `lab wan`: {help_text.stderr.strip()}")
        missing = [each for each in self.arguments if each.startswith("--") and each not in help_text.stdout]
        if missing:
            raise Failed(
                f"the network {self.name} needs {', '.join(missing)}, which `lab wan` of {binary} does not have; "
                "take a newer build, or --network ideal,delay"
            )
        # The route to the client needs the TUN device of the relay; netem has none.
        more, about = (("--via", "relay") if "--via" in help_text.stdout else ()), self.about
        if "--rate" in self.arguments and "--queue" in help_text.stdout:
            more, about = (*more, *QUEUE), f"{about}, 1000 packets queue"
        return replace(self, about=about, arguments=(*self.arguments, *more))


RATE = ("--rate", "100mbit")
# The rate in MiB/s.
LINK_MIB = 100e6 / 8 / 2**20
# The queue of netem, on which WANem is based. Builds without this option queue one bandwidth-delay product.
QUEUE = ("--queue", f"{1000 * 1500}B")
# The RTT is twice the delay. The paper does not state whether its jitter is per direction; here each direction has half of
# its variance, so that the RTT has all of it: 10 ms / sqrt(2).
LOSS_AND_JITTER = ("--jitter", "7.07ms", "--jitter-kind", "normal", "--loss", "0.1%")

NETWORKS = {
    network.name: network
    for network in (
        Network("unshaped", "no delay, unlimited rate", ("--delay", "0ms")),
        Network("ideal", "100 Mbit/s, no delay", ("--delay", "0ms", *RATE)),
        Network("delay", "100 Mbit/s, RTT 50 ms", ("--delay", "25ms", *RATE)),
        Network(
            "realistic",
            "100 Mbit/s, RTT 50 ms with a normal jitter of 10 ms, 0.1 % loss in each direction",
            ("--delay", "25ms", *RATE, *LOSS_AND_JITTER),
        ),
    )
}
# Jitter does not reorder packets unless `lab wan` has the flag --reorder.
ORDER = "packets are not reordered"
