"""Builds the embedded profiles from published rows and measured kernels: `experiments.published --build DATA`.

What is published goes in as it is. What is not is assumed, with a range, and says so. Acceptance follows from SD's
rows under the assumed costs, kind of prompt by kind of prompt; then ONE scalar, the prefactor of the hit curve, is
calibrated on one SSD figure. Nothing else is tuned.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from experiments.published import rates, rows
from experiments.published.kernels import NEAREST_CONTEXT, Kernels, Model, Term, constant, significant, summed
from experiments.published.notes import Notes, llama_notes, qwen_notes
from experiments.published.rates import Profile
from ssdsim.costs.terms import SumTerm

ASSUMED_PREFACTOR = 0.5
"""The hit curve before calibration: where a token is rejected, the draft's next choice is right half the time."""
ASSUMED_EXPONENT = 1.0

TREE_BRANCHES = 24
"""Branches of one sequence at lookahead 7 and fan-out 3: they read one common context."""

MESSAGE_S = 3e-5
"""One small message between GPUs of one machine."""
NVLINK_BYTES_PER_S = 450e9
LOGIT_BYTES = 2

LLAMA_TARGET = Model(
    name="Llama-3.1-70B",
    tp=4,
    layers=80,
    hidden=8192,
    query_size=8192,
    kv_size=1024,
    intermediate=28672,
    vocabulary=128256,
)
LLAMA_DRAFT = Model(
    name="Llama-3.2-1B",
    tp=1,
    layers=16,
    hidden=2048,
    query_size=2048,
    kv_size=512,
    intermediate=8192,
    vocabulary=128256,
)
QWEN_TARGET = Model(
    name="Qwen3-32B",
    tp=4,
    layers=64,
    hidden=5120,
    query_size=8192,
    kv_size=1024,
    intermediate=25600,
    vocabulary=151936,
)
QWEN_DRAFT = Model(
    name="Qwen3-0.6B",
    tp=1,
    layers=28,
    hidden=1024,
    query_size=2048,
    kv_size=1024,
    intermediate=3072,
    vocabulary=151936,
)

SD_STEPS = rows.SD_LOOKAHEAD + 1
SD_ROUNDS_S = (24e-3, 32e-3)
"""Llama's SD round: between these the rows do not decide."""
QWEN_DRAFT_STEPS_S = (1.3e-3, rows.QWEN_TREE_STEP_S)
"""SD's draft step for Qwen: between composed kernels and the reproduction's tree step."""


def build(data: Path) -> dict[str, Profile]:
    """Both profiles by name, from the folder of reference data."""
    kernels = Kernels.read(data)
    return {profile["name"]: profile for profile in (llama(kernels), qwen(kernels))}


def write(data: Path, folder: Path) -> list[Path]:
    """Write both profiles as `folder/NAME.json`."""
    written = []
    for name, profile in build(data).items():
        written.append(folder / f"{name}.json")
        written[-1].write_text(serialise(profile))
    return written


def serialise(profile: Profile) -> str:
    """The text of a profile file: sorted keys, one number per line, so that differences show."""
    return json.dumps(profile, indent=1, sort_keys=True) + "\n"


def llama(kernels: Kernels) -> Profile:
    """Llama-3.1-70B/3.2-1B: the paper's Table B.3; phases of the speculator as in the independent reproduction."""
    ar_s, vllm_ar_s = 1 / rows.LLAMA.ar[0], 1 / rows.VLLM_AR
    host_s = (ar_s - vllm_ar_s) / 2
    step_s = kernels.step_s(LLAMA_DRAFT) * (ar_s - host_s) / kernels.step_s(LLAMA_TARGET)
    profile = _profile(kernels, "llama-3.1-70b", LLAMA_TARGET, LLAMA_DRAFT)
    profile["summary"] = "Llama-3.1-70B on four H100, drafted by Llama-3.2-1B on a fifth: the SSD paper's Table B.3."
    costs = profile["costs"]
    costs["host"] = constant(host_s)
    costs["accept"] = constant(_qwen_accept_s(kernels))
    _last(costs["verify"], ar_s - costs["host"]["seconds"])
    for phase in ("draft_step", "jit_step", "tree_step"):
        _last(costs[phase], step_s)
    _last(costs["glue"], rows.QWEN_GLUE_S)
    rates.fit_acceptance(profile, rows.LLAMA)
    rates.calibrate_prefactor(profile, rows.LLAMA, 7, ("humaneval",))

    verified_s = rates.columns(profile, "sd", rates.SD_DRAFTING, None)["round_s"] - SD_STEPS * step_s
    unit_s = step_s / costs["draft_step"]["scale"]
    low, high = ((round_s - verified_s) / SD_STEPS / unit_s for round_s in SD_ROUNDS_S)
    return _noted(profile, llama_notes((low, high), unit_s, ar_s - vllm_ar_s))


def qwen(kernels: Kernels) -> Profile:
    """Qwen3-32B/0.6B: the independent reproduction's rates and phases."""
    profile = _profile(kernels, "qwen3-32b", QWEN_TARGET, QWEN_DRAFT)
    profile["summary"] = (
        "Qwen3-32B on four H100, drafted by Qwen3-0.6B on a fifth: an independent reproduction's rates and phases."
    )
    costs = profile["costs"]
    costs["verify"] = _qwen_forward(kernels)
    costs["accept"] = constant(_qwen_accept_s(kernels))
    _last(costs["draft_step"], fmean(QWEN_DRAFT_STEPS_S))
    _last(costs["jit_step"], fmean(QWEN_DRAFT_STEPS_S))
    _last(costs["tree_step"], rows.QWEN_TREE_STEP_S)
    _last(costs["glue"], rows.QWEN_GLUE_S)
    rates.fit_acceptance(profile, rows.QWEN)
    rates.calibrate_prefactor(profile, rows.QWEN, 4, rows.PROMPT_KINDS)
    low, high = (costs["draft_step"]["scale"] * s / fmean(QWEN_DRAFT_STEPS_S) for s in QWEN_DRAFT_STEPS_S)
    return _noted(profile, qwen_notes((low, high)))


def _qwen_forward(kernels: Kernels) -> Term:
    return _last(_target_step(kernels, QWEN_TARGET), 1 / fmean(rows.QWEN.ar))


def _qwen_accept_s(kernels: Kernels) -> float:
    """What the reproduction's verification (five tokens) takes beyond a forward grown from its AR step."""
    forward = SumTerm.model_validate(_qwen_forward(kernels))
    return rows.QWEN_VERIFY_S - float(forward(1, 5, NEAREST_CONTEXT))


def _last(term: Term, seconds: float) -> Term:
    """Scale `term` so that it lasts `seconds` for one sequence and one token; returns it."""
    term["scale"] = 1.0
    unscaled = float(SumTerm.model_validate(term)(1, 1, NEAREST_CONTEXT))
    term["scale"] = significant(seconds / unscaled, 6)
    return term


def _profile(kernels: Kernels, name: str, target: Model, draft: Model) -> Profile:
    """A profile whose steps are composed kernels as they are and whose acceptance is a place holder to be fitted."""
    kinds: tuple[str | None, ...] = (None, *rows.PROMPT_KINDS)
    device = "H100-SXM"
    return {
        "schema_version": 1,
        "name": name,
        "target": target.name,
        "draft": draft.name,
        "hardware": {
            "target_device": device,
            "target_tp": target.tp,
            "draft_device": device,
            "draft_tp": draft.tp,
        },
        "behaviours": [_behaviour(kind) for kind in kinds],
        "costs": {
            "kind": "components",
            "verify": _target_step(kernels, target),
            "draft_step": _draft_step(kernels, draft),
            "jit_step": _draft_step(kernels, draft),
            "glue": _draft_step(kernels, draft),
            "tree_step": _draft_step(kernels, draft, TREE_BRANCHES),
            "lookup": constant(rows.QWEN_SERVICE_S),
            "store": constant(rows.QWEN_STORE_S),
            "accept": constant(0.0),
            "outcome": constant(MESSAGE_S),
            "reply": {
                "kind": "linear",
                "base_s": MESSAGE_S,
                "per_query_token_s": significant(draft.vocabulary * LOGIT_BYTES / NVLINK_BYTES_PER_S),
            },
            "host": constant(0.0),
            "ngram": constant(1e-4),
        },
        "limits": {
            "max_batch_size": 1,
            "max_speculative_tokens": 7,
            "max_fan_out": 3,
            "max_context_tokens": NEAREST_CONTEXT,
        },
    }


def _behaviour(prompt_kind: str | None) -> Profile:
    when: Profile = {"temperature": 0.0, "saguaro_downweight": 1.0, "drafter": "model"}
    curve = {"kind": "power", "miss_exponent": ASSUMED_EXPONENT, "miss_prefactor": ASSUMED_PREFACTOR}
    return {
        "when": when if prompt_kind is None else {**when, "prompt_kind": prompt_kind},
        "acceptance": {"per_position": 0.8},
        "ngram_acceptance": {"per_position": 0.3},
        "hit_curves": {"after_draft": {"rejection": curve}},
    }


def _target_step(kernels: Kernels, target: Model) -> Term:
    return summed(kernels.dense(target), kernels.all_reduce(target), kernels.attention(target))


def _draft_step(kernels: Kernels, draft: Model, rows_per_sequence: int = 1) -> Term:
    return summed(kernels.small_dense(draft), kernels.attention(draft, rows_per_sequence))


def _noted(profile: Profile, notes: Notes) -> Profile:
    return {**profile, "provenance": notes.provenance, "ranges": notes.ranges}
