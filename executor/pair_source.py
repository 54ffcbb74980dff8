"""From the pair that a user names to models that can be loaded, and names that can be published.

Used by `executor.measure`, `executor.teacher_forced` and `executor.real`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from executor.machine import public_name, weights_digest
from executor.models import load_tokenizer
from executor.pairs import pair_paths
from executor.roles import ModelPair
from ssdsim.errors import InputError
from ssdsim.measurement import ModelSource

_DUMMY = "dummy:"


class NamedPair(NamedTuple):
    """A pair to load, and what it is called: no path of this machine."""

    models: ModelPair
    tokenizer_source: str
    target_name: str
    draft_name: str | None

    @property
    def is_dummy(self) -> bool:
        """Whether the target's weights are random: it has no tokenizer."""
        return self.models.target.startswith(_DUMMY)

    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return load_tokenizer(self.tokenizer_source)

    def describe(self) -> dict[str, Any]:
        """Names, number format, devices other than the CPU, and digests of the weights, for the records."""
        devices = [self.models.target_device, self.models.draft_device]
        return {
            "target": self.target_name,
            "draft": self.draft_name,
            "dtype": self.models.dtype,
            **({"cuda_graphs": True} if self.models.cuda_graphs else {}),
            **({} if devices == ["cpu", "cpu"] else {"devices": devices}),
            "target_sha256": weights_digest(self.models.target),
            "draft_sha256": None if self.models.draft is None else weights_digest(self.models.draft),
        }


def resolve_pair(source: ModelSource) -> NamedPair:
    """The pair that `source` means. Raises InputError for one that is not there or whose vocabularies differ."""
    if source.pair is not None:
        paths = pair_paths(source.pair)
        pair = _model_pair(source, str(paths.target), str(paths.draft))
        return NamedPair(pair, str(paths.tokenizer), f"{source.pair}/target", f"{source.pair}/draft")
    if source.target is None:
        raise InputError("pair: give a built-in pair or a target")
    draft_name = None if source.draft is None else _public(source.draft)
    pair = _model_pair(source, source.target, source.draft)
    return NamedPair(pair, source.target, _public(source.target), draft_name)


def _model_pair(source: ModelSource, target: str, draft: str | None) -> ModelPair:
    pair = ModelPair(
        target=target,
        draft=draft,
        dtype=source.dtype,
        target_device=source.target_device,
        draft_device=source.draft_device,
        cuda_graphs=source.cuda_graphs,
    )
    pair.check()
    return pair


def _public(source: str) -> str:
    prefix = _DUMMY if source.startswith(_DUMMY) else ""
    return f"{prefix}{public_name(source.removeprefix(_DUMMY))}"
