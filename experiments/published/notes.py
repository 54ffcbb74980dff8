"""Where each number of the embedded profiles comes from, and between which values the assumed ones may lie."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.published import rows
from experiments.published.kernels import significant

COMMAND = "python -m experiments.published --build DATA"
TABLES = "latency/composed_decode_bf16.csv and latency/gemm_smallM_bf16.csv (H100 kernels), built by: " + COMMAND
BATCH_ONE = "published rows have batch 1 only: growth with batch is an assumption beyond it"

Bounds = tuple[float, float]

NUM_BEHAVIOURS = 1 + len(rows.PROMPT_KINDS)


@dataclass
class Notes:
    """Provenance and ranges by field path; a path covers everything below it."""

    provenance: dict[str, dict[str, str]] = field(default_factory=dict)
    ranges: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, path: str, kind: str, source: str, between: Bounds | None = None) -> None:
        """State where the number at `path` comes from, and between which values it may lie."""
        self.provenance[path] = {"kind": kind, "source": source}
        if between is not None:
            self.ranges[path] = {"low": significant(between[0]), "high": significant(between[1])}


def llama_notes(step_scales: Bounds, step_s: float, vllm_gap_s: float) -> Notes:
    """Notes of Llama-3.1-70B/3.2-1B; `step_scales` bound the draft step, `step_s` is its composed time."""
    notes = _common_notes()
    notes.add(
        "costs.verify.scale",
        "derived",
        f"AR's 54.7 tok/s ({rows.PAPER}) less costs.host; composed kernels alone take 14.1 ms",
    )
    step = (
        "composed kernels (1.34 ms) times what the target's forward exceeds its own composed kernels by (1.18): an "
        "SD round of 30.6 ms with 7 draft steps; the range is an SD round of 24 to 32 ms"
    )
    notes.add("costs.draft_step.scale", "assumed", step, step_scales)
    notes.add("costs.jit_step.scale", "assumed", f"as costs.draft_step, on one GPU: {step}", step_scales)
    notes.add(
        "costs.tree_step.scale",
        "assumed",
        "as costs.draft_step, at 24 branches; between composed kernels and the reproduction's 2.54 ms",
        (1.0, rows.QWEN_TREE_STEP_S / step_s),
    )
    notes.add("costs.glue.scale", "assumed", f"2.83 ms as in the {rows.REPRODUCTION}", (1.0, 4e-3 / step_s))
    notes.add(
        "costs.host.seconds",
        "assumed",
        "half of what the engine's AR step exceeds vLLM's by (65.9 tok/s, Figure 1); a part of AR's step",
        (0.0, vllm_gap_s),
    )
    notes.add("costs.lookup.seconds", "assumed", f"service time of the {rows.REPRODUCTION}", (0.0, 1e-3))
    notes.add(
        "costs.accept.seconds",
        "assumed",
        f"what verification takes beyond a grown AR step in the {rows.REPRODUCTION}",
        (0.0, 2e-3),
    )
    notes.add("costs.store.seconds", "assumed", f"populate time of the {rows.REPRODUCTION}", (0.0, 5e-4))
    sd_rows = f"SD's row of the same kind of prompt (default: their mean), {rows.PAPER}; K=6, 7 draft steps a round"
    ssd_rows = f"HumanEval's SSD row, 283 tok/s ({rows.PAPER}; K=7, fan-out 3): the one calibrated scalar"
    _behaviour_notes(notes, sd_rows, ssd_rows)
    return notes


def qwen_notes(step_scales: Bounds) -> Notes:
    """Notes of Qwen3-32B/0.6B; `step_scales` bound the draft step."""
    notes = _common_notes()
    profile = f"profile of the {rows.REPRODUCTION}, synchronised"
    notes.add("costs.verify.scale", "derived", f"mean of AR's four rows, 97.4 tok/s: {rows.REPRODUCTION}")
    step = "middle of 1.3 to 2.54 ms, between composed kernels and the reproduction's tree step"
    notes.add("costs.draft_step.scale", "assumed", step, step_scales)
    notes.add("costs.jit_step.scale", "assumed", f"as costs.draft_step: {step}", step_scales)
    notes.add("costs.tree_step.scale", "published", f"tree step 2.54 ms at K=4: {profile}")
    notes.add("costs.glue.scale", "published", f"build/glue 2.83 ms at K=4: {profile}")
    notes.add("costs.lookup.seconds", "published", f"service .71 ms: {profile}")
    notes.add("costs.store.seconds", "published", f"populate .05 ms: {profile}")
    notes.add(
        "costs.accept.seconds", "derived", f"verify 11.45 ms at K=4 less the forward grown from AR's step: {profile}"
    )
    notes.add("costs.host.seconds", "assumed", "contained in AR's step, which is a rate over whole runs", (0.0, 1e-3))
    sd_rows = (
        f"SD's row of the same kind of prompt (default: their mean), {rows.REPRODUCTION}; K=6, 7 draft steps a round"
    )
    ssd_rows = f"mean of SSD's K=4 rows, 210.9 tok/s ({rows.REPRODUCTION}; fan-out 3): the one calibrated scalar"
    _behaviour_notes(notes, sd_rows, ssd_rows)
    return notes


def _common_notes() -> Notes:
    notes = Notes()
    notes.add("hardware", "published", "four H100 SXM for the target, one for the draft of SSD")
    notes.add(
        "limits",
        "published",
        "what the rows cover: batch 1, K up to 7, fan-out 3, contexts of about a thousand tokens",
    )
    notes.add(
        "costs.verify.terms",
        "derived",
        f"{TABLES}; dense part and all-reduce over query tokens, attention over (sequences, context) whatever a "
        f"row's width; {BATCH_ONE}",
    )
    for phase in ("draft_step", "jit_step", "glue"):
        notes.add(f"costs.{phase}.terms", "derived", f"{TABLES}; {BATCH_ONE}")
    notes.add(
        "costs.tree_step.terms",
        "derived",
        f"{TABLES}; 24 branches of a sequence are assumed to read their common context once; {BATCH_ONE}",
    )
    notes.add("costs.outcome.seconds", "assumed", "one small message inside the machine", (1e-5, 3e-4))
    notes.add("costs.reply.base_s", "assumed", "one small message inside the machine", (1e-5, 3e-4))
    notes.add(
        "costs.reply.per_query_token_s", "derived", "one row of 16-bit logits at 450 GB/s (NVLink, one direction)"
    )
    notes.add("costs.ngram.seconds", "assumed", "a look-up on the host", (1e-5, 1e-3))
    return notes


def _behaviour_notes(notes: Notes, sd_rows: str, ssd_rows: str) -> None:
    for i in range(NUM_BEHAVIOURS):
        path = f"behaviours.{i}"
        notes.add(f"{path}.when", "published", "greedy decoding, by data set; the default behaviour is their mean")
        notes.add(f"{path}.acceptance.per_position", "fitted", sd_rows)
        notes.add(
            f"{path}.ngram_acceptance.per_position",
            "assumed",
            "no row has an n-gram fallback; the theory's examples run from .3 to .7",
            (0.1, 0.7),
        )
        curve = f"{path}.hit_curves.after_draft.rejection"
        notes.add(
            f"{curve}.miss_exponent",
            "assumed",
            "no exponent is published; the curve where everything was accepted follows from it (greedy decoding)",
            (0.5, 1.5),
        )
        notes.add(f"{curve}.miss_prefactor", "fitted", f"{ssd_rows}; assumed 0.5 before", (0.05, 0.8))
