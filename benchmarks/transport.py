"""What a message costs: round trips of one round's messages over every transport.

    python benchmarks/transport.py [--rounds 2000] [--check]

The baseline is what one would write first: objects pickled through `multiprocessing.Pipe`. All transports
are measured in one run, in turn, block by block, so that other load on the machine hits them alike. Rows:
`small`, a greedy round of batch 1; `probs`, with 49,152 float32 draft probabilities in the reply, as at
temperature above 0 with one speculative token; `small after 5 ms`, where the waiting side has gone to sleep.

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
from executor.placement import CoreReservation
from executor.transport import Transport

SMALL = Layout(num_slots=1, num_speculative_tokens=4, vocab_size=50, sampled=False, prompt_chunk=64)
PROBS = Layout(num_slots=1, num_speculative_tokens=1, vocab_size=49_152, sampled=True, prompt_chunk=64)
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
    return [
        CollectiveChannel(layout, 1 - rank, group, sends_outcomes=rank == 0, device=cpu) for layout in layouts
    ]


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


def main() -> int:
    """Start every far side, measure, print, end them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--spin-us", type=float, default=SPIN_S * 1e6, help="how long a waiting side polls")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    layouts = {"small": SMALL, "probs": PROBS}
    cores = CoreReservation([1, 1])
    spawn = multiprocessing.get_context("spawn")
    children: list[SpeculatorProcess] = []
    objects: dict[str, Connection] = {}
    trips: dict[str, dict[str, RoundTrip]] = {name: {} for name in layouts}
    for row, layout in layouts.items():
        near, far = spawn.Pipe()
        spawn.Process(target=serve_objects, args=(far, layout), daemon=True).start()
        objects[row] = near
        trips[row]["objects"] = over_objects(near)
        for transport in (Transport.PIPE, Transport.SHM):
            child = SpeculatorProcess(
                entry="transport:prepare",
                payload=layout,
                layout=layout,
                transport=transport,
                placement=cores.placements[1],
                spin_s=arguments.spin_us * 1e-6,
            )
            children.append(child)
            child.wait_until_ready()
            trips[row][str(transport)] = over(child.channel, layout)
    with tempfile.TemporaryDirectory() as folder:
        store, wanted = str(Path(folder) / "store"), list(layouts.values())
        spawn.Process(target=serve_gloo, args=(store, wanted), daemon=True).start()
        channels = gloo_channels(store, 0, wanted)
    cores.bind_caller(0)
    print(f"pinned: {[p.describe() for p in cores.placements]}, load {os.getloadavg()[0]:.1f}")
    print(f"{'row':18} {'transport':10} {'median us':>9} {'p99 us':>9} {'ratio':>8}")
    ratios = []
    for (row, layout), channel in zip(layouts.items(), channels, strict=True):
        trips[row]["gloo"] = over(channel, layout)
        ratios.append(report(row, measure(trips[row], arguments.rounds, 0.0)))
        if row == "small":
            report("small after 5 ms", measure(trips[row], max(BLOCK, arguments.rounds // 10), PAUSE_S))
        channel.close()
    for child in children:
        child.close()
    for near in objects.values():
        near.send(None)
    if arguments.check and max(ratios) > 0.5:
        print(f"shared memory takes {max(ratios):.2f} of the baseline's time; at most 0.5 is wanted")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
