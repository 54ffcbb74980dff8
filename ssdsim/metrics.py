"""Everything that is reported of a run, computed from its records: the simulator's and the executor's alike.

`summarise` is the one door. Means over rounds are ratios of sums, bounded by batch means (rounds that follow each
other are alike, stretches of rounds are nearly independent); shares of look-ups and of tokens have binomial bounds.
All bounds are at 95 %. The warm-up that a run's `about` names is left out, and the end of a closed loop, where slots
stay empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.quantities import Quantity
from ssdsim.records import ROUND_COLUMNS, Lookup, Records, Source

Columns = Mapping[str, NDArray[Any]]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_Z = 1.959964
_NUM_BATCHES = 64
_CLOCK_NOISE = 1e-9
"""Share of a round below which a difference of clock readings is rounding."""
_MEAN_TERMS = tuple(name for name in ROUND_COLUMNS if name.endswith("_s") and name != "start_s")
_DERIVED_TERMS = ("window_s", "build_s", "build_wait_s", "overhead_s")
_SUMS = ("rounds", "rows", "row_s", "tokens", "hits", "look_ups", "all_hit", *_MEAN_TERMS, *_DERIVED_TERMS)
_FROM_DRAFT_MODEL = [Source.FIRST, Source.HIT, Source.JIT, Source.SD]
_NOT_MISSED = [Source.FIRST, Source.HIT]
_MISSED = [Source.JIT, Source.NGRAM, Source.NONE, Source.RANDOM]
_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_PERCENTILES = (50, 90, 99)


class RateWithError(NamedTuple):
    """A rate of the whole batch and its standard error (nan where there is too little to tell)."""

    tokens_per_s: float
    standard_error: float


def summarise(records: Records, tally: Tally | None = None) -> dict[str, Quantity]:
    """All quantities of a run by name; times in seconds, rates per second of the whole batch.

    `tally` stands in for tables that the run did not keep. Quantities of what the run does not have (a cache under
    AR, finished requests of an endless run) are absent.
    """
    tally = tally or tally_of(records)
    quantities = _latencies(records)
    if tally.num_rounds:
        quantities |= {**_means_of_rounds(tally), **_shares(tally), **_percentiles_of_gaps(records)}
    return quantities


def rate_with_error(records: Records, tally: Tally | None = None) -> RateWithError:
    """Output tokens per second and its standard error.

    Static batches are independent of each other, so their (tokens, time) pairs give the error (the request table must
    be complete); otherwise batch means do.
    """
    tally = tally or tally_of(records)
    static = Window.of(records).static
    tokens, seconds = _static_batches(records) if static else tally.batches("tokens", "round_s")
    return RateWithError(tally.ratio("tokens", "round_s"), _error_of_ratio(tokens, seconds))


@dataclass(frozen=True)
class Window:
    """Which rounds and requests of a run are measured, as its `about` says."""

    static: bool = False
    warmup_rounds: int = 0
    warmup_requests: int = 0
    full_batch: int = 0
    """Rows of a full batch; a closed loop with fewer is running dry."""

    @classmethod
    def of(cls, records: Records) -> Window:
        """The window of a run; everything where the run does not tell its scenario."""
        scenario = records.about.get("scenario")
        return cls() if scenario is None else cls.from_scenario(scenario)

    @classmethod
    def from_scenario(cls, scenario: Mapping[str, Any]) -> Window:
        """The window of a scenario in plain data."""
        workload, run = scenario["workload"], scenario["run"]
        static = workload["arrivals"] == "static"
        endless = workload["output_tokens"] is None
        return cls(
            static=static,
            warmup_rounds=run["warmup_rounds"] if endless else 0,
            warmup_requests=0 if endless else run["warmup_requests"],
            full_batch=0 if static or endless else min(workload["batch_size"], workload["num_requests"]),
        )

    def rounds(self, rounds: Columns, first_measured_s: float) -> BoolArray:
        """Mask of the measured rounds; `first_measured_s` is when the first measured request was admitted."""
        after_warmup = (rounds["round"] >= self.warmup_rounds) & (rounds["start_s"] >= first_measured_s)
        mask: BoolArray = after_warmup & (rounds["batch_size"] >= self.full_batch)
        return mask

    def requests(self, requests: Columns) -> Columns:
        """The measured requests, in order of admission."""
        order = np.argsort(requests["request_id"], kind="stable")
        order = order[requests["request_id"][order] >= self.warmup_requests]
        return {name: column[order] for name, column in requests.items()}


class Tally:
    """Running sums of a run, enough for every mean: a million rounds take no more room than a hundred."""

    def __init__(self) -> None:
        self.outcomes = np.zeros((len(Source), len(Lookup), 1, 1), dtype=np.int64)
        """Rows by source, look-up, tokens proposed and tokens accepted."""
        self._batches = np.zeros((_NUM_BATCHES, len(_SUMS)))
        self._num_full = 0
        self._rounds_per_batch = 1
        self._open = np.zeros(len(_SUMS))
        self._open_rounds = 0
        self._total = np.zeros(len(_SUMS))

    @property
    def num_rounds(self) -> int:
        return int(self._total[0])

    def add_rounds(self, rounds: Columns, tokens: IntArray) -> None:
        """Add rounds (columns of the round table) that emitted `tokens` each."""
        sums = _sums_of_rounds(rounds, tokens)
        self._total += sums.sum(axis=0)
        while len(sums):
            taken = sums[: self._rounds_per_batch - self._open_rounds]
            self._open += taken.sum(axis=0)
            self._open_rounds += len(taken)
            sums = sums[len(taken) :]
            if self._open_rounds == self._rounds_per_batch:
                self._close_batch()

    def add_outcomes(self, outcomes: Columns) -> None:
        """Add rows (columns of the outcome table)."""
        columns = ("source", "lookup", "num_proposed", "num_accepted")
        self.add_histogram(outcome_histogram(*(outcomes[name] for name in columns)))

    def add_histogram(self, histogram: IntArray) -> None:
        """Add rows that are already counted, see `outcome_histogram`."""
        size = max(histogram.shape[-1], self.outcomes.shape[-1])
        total = np.zeros((len(Source), len(Lookup), size, size), dtype=np.int64)
        for part in (self.outcomes, histogram):
            total[:, :, : part.shape[2], : part.shape[3]] += part
        self.outcomes = total

    def ratio(self, numerator: str, denominator: str) -> float:
        """One sum over another; nan where there is nothing to divide by."""
        top, bottom = self._total[_SUMS.index(numerator)], self._total[_SUMS.index(denominator)]
        return float(top / bottom) if bottom else math.nan

    def batches(self, *names: str) -> tuple[FloatArray, ...]:
        """Sums over stretches of equally many rounds, one array per name."""
        return tuple(self._batches[: self._num_full, _SUMS.index(name)] for name in names)

    def quantity(self, numerator: str, denominator: str) -> Quantity:
        """A ratio with the bounds that its batches give."""
        value = self.ratio(numerator, denominator)
        half_width = _Z * _error_of_ratio(*self.batches(numerator, denominator))
        return Quantity(value) if math.isnan(half_width) else Quantity(value, value - half_width, value + half_width)

    def _close_batch(self) -> None:
        """Keep the batch; when all places are taken, join neighbours into batches of twice the size."""
        self._batches[self._num_full] = self._open
        self._num_full += 1
        self._open, self._open_rounds = np.zeros(len(_SUMS)), 0
        if self._num_full == _NUM_BATCHES:
            half = _NUM_BATCHES // 2
            self._batches[:half] = self._batches[0::2] + self._batches[1::2]
            self._num_full, self._rounds_per_batch = half, 2 * self._rounds_per_batch


def outcome_histogram(
    source: NDArray[Any], lookup: NDArray[Any], num_proposed: NDArray[Any], num_accepted: NDArray[Any]
) -> IntArray:
    """Rows counted by [source, look-up, tokens proposed, tokens accepted]."""
    size = 1 + int(max(num_proposed.max(initial=0), num_accepted.max(initial=0)))
    code = source.astype(np.int64) * len(Lookup) + lookup
    code = (code * size + num_proposed) * size + num_accepted
    shape = (len(Source), len(Lookup), size, size)
    return np.bincount(code, minlength=math.prod(shape)).reshape(shape)


def tally_of(records: Records) -> Tally:
    """The sums of a run's tables over its measured rounds."""
    rounds, outcomes = records.rounds.columns(), records.outcomes.columns()
    tally, measured = Tally(), measured_rounds(records)
    index = np.searchsorted(rounds["round"], outcomes["round"])
    tokens = np.bincount(index, outcomes["num_emitted"], len(measured)).astype(np.int64)
    tally.add_rounds({name: column[measured] for name, column in rounds.items()}, tokens[measured])
    tally.add_outcomes({name: column[measured[index]] for name, column in outcomes.items()})
    return tally


def measured_rounds(records: Records) -> BoolArray:
    """Mask of the rounds in the table that metrics see."""
    window = Window.of(records)
    admitted_s = window.requests(records.requests.columns())["admitted_s"]
    first_measured_s = admitted_s.min() if window.warmup_requests and len(admitted_s) else -math.inf
    return window.rounds(records.rounds.columns(), first_measured_s)


def _sums_of_rounds(rounds: Columns, tokens: IntArray) -> FloatArray:
    """[rounds, _SUMS]"""
    window_s = rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"] + rounds["outcome_s"]
    overhead_s = rounds["lookup_s"] + rounds["host_s"]
    build_wait_s = rounds["round_s"] - rounds["fallback_s"] - window_s - overhead_s - rounds["prefill_s"]
    derived = {
        "rounds": np.ones(len(tokens)),
        "rows": rounds["batch_size"],
        "row_s": rounds["batch_size"] * rounds["round_s"],
        "tokens": tokens,
        "hits": rounds["num_hits"],
        "look_ups": rounds["num_hits"] + rounds["num_misses"],
        "all_hit": rounds["num_misses"] == 0,
        "window_s": window_s,
        "overhead_s": overhead_s,
        "build_s": rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"],
        "build_wait_s": np.where(build_wait_s > _CLOCK_NOISE * rounds["round_s"], build_wait_s, 0.0),
    }
    return np.stack([derived[name] if name in derived else rounds[name] for name in _SUMS], axis=1, dtype=np.float64)


def _means_of_rounds(tally: Tally) -> dict[str, Quantity]:
    means = {
        "tokens_per_s": tally.quantity("tokens", "round_s"),
        "tokens_per_s_per_request": tally.quantity("tokens", "row_s"),
        "mean_acceptance_length": tally.quantity("tokens", "rows"),
        "batch_size": tally.quantity("rows", "rounds"),
    }
    if not math.isnan(tally.ratio("hits", "look_ups")):
        means["cache_hit_rate"] = tally.quantity("hits", "look_ups")
        means["prob_all_hit"] = tally.quantity("all_hit", "rounds")
    means |= {name: tally.quantity(name, "rounds") for name in (*_MEAN_TERMS, *_DERIVED_TERMS)}
    finished = int(tally.outcomes[:, Lookup.FINAL].sum())
    if finished:
        seconds = tally.ratio("round_s", "rounds") * tally.num_rounds
        means["requests_per_s"] = Quantity(finished / seconds)
    return means


def _shares(tally: Tally) -> dict[str, Quantity]:
    """Acceptance per position, and hit rates by what came before."""
    shares: dict[str, Quantity] = {}
    drafted = tally.outcomes[_FROM_DRAFT_MODEL].sum(axis=(0, 1))  # [proposed, accepted]
    proposed = np.arange(drafted.shape[0])[:, None]
    accepted = np.arange(drafted.shape[1])[None, :]
    for i in range(drafted.shape[0] - 1):
        reached = drafted[(proposed > i) & (accepted >= i)].sum()
        if reached:
            shares[f"acceptance_prob_{i + 1}"] = _share(drafted[(proposed > i) & (accepted > i)].sum(), reached)
    if proposed_tokens := int((drafted * proposed).sum()):
        shares["draft_acceptance_rate"] = _share(int((drafted * accepted).sum()), proposed_tokens)
    looked_up = tally.outcomes.sum(axis=(2, 3))  # [source, look-up]
    for name, sources in (("hit_rate_after_draft", _NOT_MISSED), ("hit_rate_after_fallback", _MISSED)):
        hits, misses = looked_up[sources][:, [Lookup.HIT, Lookup.MISS]].sum(axis=0)
        if hits + misses:
            shares[name] = _share(hits, hits + misses)
    return shares


def _latencies(records: Records) -> dict[str, Quantity]:
    """Means and percentiles over requests: first token, per token after it, end to end, and gaps between bursts."""
    requests = Window.of(records).requests(records.requests.columns())
    if not len(requests["request_id"]):
        return {}
    ttft_s = requests["first_token_s"] - requests["arrival_s"]
    e2e_s = requests["finish_s"] - requests["arrival_s"]
    several = requests["output_tokens"] > 1
    tpot_s = (e2e_s - ttft_s)[several] / (requests["output_tokens"][several] - 1)
    latencies: dict[str, Quantity] = {}
    for name, values in zip(_LATENCIES, (ttft_s, tpot_s, e2e_s), strict=True):
        if len(values):
            latencies[name] = _mean(values)
            latencies |= {_percentile_name(name, p): _percentile(values, p) for p in _PERCENTILES}
    gaps = requests["num_rounds"] - 1
    if gaps.any():
        decoding_s = (requests["finish_s"] - requests["first_token_s"])[gaps > 0]
        latencies["itl_s"] = _ratio_of_requests(decoding_s, gaps[gaps > 0])
    return latencies


def _percentiles_of_gaps(records: Records) -> dict[str, Quantity]:
    """Percentiles of the time between two bursts of tokens of one request, from rounds that follow each other."""
    rounds = records.rounds.columns()
    follows = np.diff(rounds["round"], prepend=-1) == 1
    follows[:1] = False
    consecutive = np.flatnonzero(follows & measured_rounds(records))
    if not len(consecutive):
        return {}
    emitted_s = rounds["start_s"] + rounds["verifier_wait_s"]
    emitted_s += rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"]
    admitted = np.sort(records.requests.columns()["admitted_s"])
    new_rows = np.diff(np.searchsorted(admitted, rounds["start_s"], side="right"), prepend=0)
    weights = (rounds["batch_size"] - new_rows)[consecutive]
    gaps_s = emitted_s[consecutive] - emitted_s[consecutive - 1]
    order = np.argsort(gaps_s)
    cumulative = np.cumsum(weights[order])
    places = np.searchsorted(cumulative, np.array(_PERCENTILES) / 100 * cumulative[-1])
    return {
        _percentile_name("itl_s", p): Quantity(float(gaps_s[order[place]]))
        for p, place in zip(_PERCENTILES, places, strict=True)
    }


def _static_batches(records: Records) -> tuple[FloatArray, FloatArray]:
    """(tokens, seconds) of every static batch."""
    requests = Window.of(records).requests(records.requests.columns())
    starts, index = np.unique(requests["admitted_s"], return_inverse=True)
    tokens = np.bincount(index, requests["output_tokens"]).astype(np.float64)
    return tokens, np.diff(starts, append=requests["finish_s"].max())


def _error_of_ratio(numerators: FloatArray, denominators: FloatArray) -> float:
    """Standard error of sum / sum over alike, nearly independent pairs."""
    count = len(numerators)
    if count < 2 or not denominators.any():
        return math.nan
    residuals = numerators - numerators.sum() / denominators.sum() * denominators
    return float(np.sqrt(residuals @ residuals / (count - 1) / count) / denominators.mean())


def _share(part: int, whole: int) -> Quantity:
    """A share of independent trials with Wilson's bounds."""
    share, spread = part / whole, _Z**2 / whole
    centre = (share + spread / 2) / (1 + spread)
    half_width = _Z * math.sqrt(share * (1 - share) / whole + spread / whole / 4) / (1 + spread)
    return Quantity(share, centre - half_width, centre + half_width)


def _mean(values: FloatArray) -> Quantity:
    return _ratio_of_requests(values, np.ones(len(values)))


def _ratio_of_requests(numerators: FloatArray, denominators: FloatArray) -> Quantity:
    """Sum over sum, bounded by means of stretches of requests: those that shared the batch are not independent."""
    value = float(numerators.sum() / denominators.sum())
    edges = np.linspace(0, len(numerators), min(_NUM_BATCHES // 2, len(numerators)), endpoint=False).astype(np.intp)
    half_width = _Z * _error_of_ratio(np.add.reduceat(numerators, edges), np.add.reduceat(denominators, edges))
    return Quantity(value) if math.isnan(half_width) else Quantity(value, value - half_width, value + half_width)


def _percentile(values: FloatArray, percent: int) -> Quantity:
    """A percentile, bounded by the order statistics that enclose it."""
    ordered, share = np.sort(values), percent / 100
    spread = _Z * math.sqrt(len(values) * share * (1 - share))
    low, high = (round(share * len(values) + sign * spread) for sign in (-1, 1))
    bounds = (float(ordered[i]) if 0 <= i < len(values) else None for i in (low, high))
    return Quantity(float(np.percentile(ordered, percent)), *bounds)


def _percentile_name(name: str, percent: int) -> str:
    return f"{name.removesuffix('_s')}_p{percent}_s"
