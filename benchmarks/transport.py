"""What a message costs: round trips of one round's messages over every transport.

    python benchmarks/transport.py [--rounds 2000] [--check]

The baseline is what one would write first: objects pickled through `multiprocessing.Pipe`. All transports
are measured in one run, in turn, block by block, so that other load on the machine hits them alike. Rows:
`small`, a greedy round of batch 1; `probs`, with 49,152 float32 draft probabilities in the reply, as at
temperature above 0 with one speculative token; each also after a pause in which the far side has gone to sleep.

With --check: exits 1 unless shared memory takes at most half of the baseline's median in each row without a
pause, and every reply was the right one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executor.child import Serve
from executor.launch import SPIN_S, SpeculatorProcess
from executor.messages import Channel, ChannelClosed, Layout, OutcomeMessage, SpeculationMessage
from executor.placement import CoreReservation, Placement
from executor.transport import Transport

SMALL = Layout(num_slots=1, num_speculative_tokens=4, vocab_size=50, sampled=False, prompt_chunk=64)
PROBS = Layout(num_slots=1, num_speculative_tokens=1, vocab_size=49_152, sampled=True, prompt_chunk=64)
ROWS = {"small": SMALL, "probs": PROBS}
BLOCK = 50
PAUSE_S = 5e-3

RoundTrip = Callable[[int], int]
"""Sends round number i, returns the round number in the reply."""


def prepare(layout: Layout) -> Serve:
    """The far side of a channel: answers each round at once."""

    def serve(channel: Channel) -> None:
        reply = SpeculationMessage(layout)
        while True:
            reply.view["round"] = OutcomeMessage(layout, channel.recv()).view["round"]
            channel.send(reply.buffer)

    return serve


def serve_objects(end: Connection, layout: Layout) -> None:
    """The far side of the baseline."""
    probs = np.zeros((1, 1, layout.vocab_size), np.float32) if layout.sampled else None
    while (outcome := end.recv()) is not None:
        end.send({"round": outcome["round"], "tokens": [[1, 2, 3, 4]], "source": ["hit"], "probs": probs})


def serve_gloo(store: str, layouts: list[Layout]) -> None:
    """The far side over gloo, one channel per layout in turn."""
    for channel, layout in zip(gloo_channels(store, 1, layouts), layouts, strict=True):
        try:
            prepare(layout)(channel)
        except ChannelClosed:
            continue
    os._exit(0)  # Leaving through gloo's own shutdown would wait for a peer that has closed.


def gloo_channels(store: str, rank: int, layouts: list[Layout]) -> list[Channel]:
    """This rank's channels to the other one of two."""
    import torch
    import torch.distributed as dist

    from executor.transport.collective import CollectiveChannel

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    cpu, group = torch.device("cpu"), dist.group.WORLD
    assert group is not None
    return [CollectiveChannel(layout, 1 - rank, group, sends_outcomes=rank == 0, device=cpu) for layout in layouts]


def over(channel: Channel, layout: Layout) -> RoundTrip:
    """Round trips over a channel."""
    outcome = OutcomeMessage(layout)

    def round_trip(number: int) -> int:
        outcome.view["round"] = number
        channel.send(outcome.buffer)
        return int(SpeculationMessage(layout, channel.recv()).view["round"])

    return round_trip


def over_objects(end: Connection) -> RoundTrip:
    """Round trips of pickled objects."""

    def round_trip(number: int) -> int:
        end.send({"round": number, "num_accepted": [3], "bonus_token": [17], "prompt": None})
        return int(end.recv()["round"])

    return round_trip


def measure(trips: dict[str, RoundTrip], rounds: int, pause_s: float) -> dict[str, NDArray[np.float64]]:
    """Seconds per round trip [rounds] of each transport, measured block by block in turn."""
    times: dict[str, list[float]] = {name: [] for name in trips}
    for start in range(0, rounds, BLOCK):
        for name, trip in trips.items():
            for number in range(start, start + BLOCK):
                if pause_s:
                    time.sleep(pause_s)
                began = time.perf_counter()
                answer = trip(number)
                times[name].append(time.perf_counter() - began)
                if answer != number:
                    raise SystemExit(f"{name}: round {number} was answered as {answer}")
    return {name: np.array(values) for name, values in times.items()}


def report(row: str, times: dict[str, NDArray[np.float64]]) -> float:
    """Print the table of one row; returns shared memory's median over the baseline's."""
    baseline = float(np.median(times["objects"]))
    for name, values in times.items():
        median, p99 = np.quantile(values, (0.5, 0.99))
        print(f"{row:18} {name:10} {median * 1e6:9.1f} {p99 * 1e6:9.1f} {median / baseline:8.3f}")
    return float(np.median(times["shm"])) / baseline


class FarSides:
    """Everything that answers, one process per transport and layout, and how to ask it."""

    def __init__(self, placement: Placement, spin_s: float) -> None:
        self._spawn = multiprocessing.get_context("spawn")
        self._placement, self._spin_s = placement, spin_s
        self._children: list[SpeculatorProcess] = []
        self._objects: list[Connection] = []
        self._gloo: list[Channel] = []
        self.trips: dict[str, dict[str, RoundTrip]] = {row: {} for row in ROWS}
        for row, layout in ROWS.items():
            self.trips[row]["objects"] = self._start_objects(layout)
            for transport in (Transport.PIPE, Transport.SHM):
                self.trips[row][str(transport)] = self._start_child(transport, layout)
        self._start_gloo()

    def close(self) -> None:
        """End them all."""
        for channel in self._gloo:
            channel.close()
        for child in self._children:
            child.close()
        for near in self._objects:
            near.send(None)

    def _start_objects(self, layout: Layout) -> RoundTrip:
        near, far = self._spawn.Pipe()
        self._spawn.Process(target=serve_objects, args=(far, layout), daemon=True).start()
        self._objects.append(near)
        return over_objects(near)

    def _start_child(self, transport: Transport, layout: Layout) -> RoundTrip:
        child = SpeculatorProcess(
            entry="transport:prepare",
            payload=layout,
            layout=layout,
            transport=transport,
            placement=self._placement,
            spin_s=self._spin_s,
        )
        self._children.append(child)
        child.wait_until_ready()
        return over(child.channel, layout)

    def _start_gloo(self) -> None:
        layouts = list(ROWS.values())
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            self._spawn.Process(target=serve_gloo, args=(store, layouts), daemon=True).start()
            self._gloo = gloo_channels(store, 0, layouts)
        for (row, layout), channel in zip(ROWS.items(), self._gloo, strict=True):
            self.trips[row]["gloo"] = over(channel, layout)


def main() -> int:
    """Start every far side, measure, print, end them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--spin-us", type=float, default=SPIN_S * 1e6, help="how long a side with a core polls")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    cores = CoreReservation([1, 1])
    near, far = cores.placements
    sides = FarSides(far, arguments.spin_us * 1e-6 if far.cores else 0.0)
    cores.bind_caller(0)
    print(f"near side: {near.describe()}; far sides: {far.describe()}; load {os.getloadavg()[0]:.1f}")
    print(f"{'row':18} {'transport':10} {'median us':>9} {'p99 us':>9} {'ratio':>8}")
    ratios = {}
    for row, trips in sides.trips.items():
        ratios[row] = report(row, measure(trips, arguments.rounds, 0.0))
        few = max(BLOCK, arguments.rounds // 10)
        report(f"{row} after 5 ms", measure(trips, few, PAUSE_S))
    sides.close()
    if not far.cores:
        print("nothing is checked: there are not two free cores")
    elif arguments.check and max(ratios.values()) > 0.5:
        print(f"shared memory takes {max(ratios.values()):.2f} of the baseline's time; at most 0.5 is wanted")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
