"""A batch that starts together and runs to its last request (THEORY 2.3), for one point."""

from __future__ import annotations

import numpy as np

from ssdsim.design_point import DesignPoint
from ssdsim.errors import DomainError
from ssdsim.exact.rounds import (
    Columns,
    Setting,
    drafts_first_rounds,
    first_point,
    hit_columns,
    serial_times,
    ssd_times,
)
from ssdsim.exact.slots import SlotNumbers, request_kinds
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.theory.finite import round_laws, static_batch
from ssdsim.theory.lengths import length_law
from ssdsim.theory.round_time import RoundTimes


def static_columns(point: DesignPoint, slots: SlotNumbers, setting: Setting) -> Columns:
    """Rates over the mean makespan; columns as `rounds.batch_columns`, times averaged over the batch's rounds."""
    output = point.scenario.workload.output_tokens
    if output is None:
        raise DomainError("workload.output_tokens", "a static batch needs finite requests", None)
    times = [_times(point, slots, setting._replace(batch_size=active)) for active in range(1, setting.batch_size + 1)]
    drafted, answered, kinds = request_kinds(point, setting.mode, setting.fallback)
    batch = static_batch(
        drafted,
        answered,
        times,
        output.pmf(),
        initial_s=_initial_s(point, slots, setting),
        first_round="jit" if setting.mode is not Mode.SSD else point.scenario.drafting.first_round,
        request_kinds=kinds,
    )
    laws = round_laws(drafted, answered, length_law(output.pmf()), point.scenario.drafting.first_round, kinds)
    law = laws.sum(axis=0) / laws.sum()
    rounds = float(batch.rounds)
    return {
        "tokens_per_s": np.array([setting.batch_size * float(batch.rate_per_sequence)]),
        "round_s": np.array([float(batch.makespan_s) / rounds]),
        "mean_acceptance_length": slots.tokens_per_round,
        **{name: np.atleast_1d(value) for name, value in hit_columns(law, setting.batch_size).items()},
    }


def _times(point: DesignPoint, slots: SlotNumbers, setting: Setting) -> RoundTimes:
    costs, devices = point.scenario.costs, point.scenario.placement.num_draft_devices
    if setting.mode is not Mode.SSD:
        drafting_s, window_s, host_s = serial_times(slots, setting, costs)
        nothing = np.zeros(setting.batch_size + 1)
        return RoundTimes(
            window_s=window_s, build_s=np.zeros(1), fallback_s=nothing, overhead_s=float(drafting_s[0] + host_s[0])
        )
    times, _ = ssd_times(slots, setting, costs, devices)
    return first_point(times)


def _initial_s(point: DesignPoint, slots: SlotNumbers, setting: Setting) -> float:
    """Admission and first drafting of the whole batch, or its fallback where first rounds count as misses.

    SSD's target reads the prompts while the speculator drafts and looks up, with which every round is charged anyway.
    """
    costs, b, prompt_tokens = point.scenario.costs, setting.batch_size, slots.prompt_tokens[0]
    prefill_s, draft_prefill_s = (float(read(b, prompt_tokens)) for read in (costs.prefill_s, costs.draft_prefill_s))
    if setting.mode is not Mode.SSD:
        return prefill_s + (draft_prefill_s if setting.mode is Mode.SD and slots.num_steps[0] else 0.0)
    drafting_s = float(costs.ngram_s(b)) if setting.fallback is FallbackKind.NGRAM else 0.0
    if drafts_first_rounds(setting):
        drafting_s = draft_prefill_s + float(costs.jit_s(b, slots.num_steps[0], slots.context_tokens[0]))
    return max(drafting_s, prefill_s - float(costs.lookup_s(b)))
