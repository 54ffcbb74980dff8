"""The training text of the pair `tiny`: text that every machine with Python has.

Who uses it: `executor.pairs.train_tiny`, and the tests, which need text that the pair has not been trained on.
The text is the standard library of the running interpreter (its sources, and the language reference behind
`help()`), without tests, installed packages and the character tables. A file is held out by the hash of its name,
so the split does not depend on what else an installation holds.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import NamedTuple

_SKIPPED_DIRS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
)
HELD_OUT_ONE_IN = 20


class Document(NamedTuple):
    """One file of the corpus: its name relative to the library's root, and its text."""

    name: str
    text: str


class Corpus(NamedTuple):
    """The two disjoint parts of the text, each sorted by name."""

    train: list[Document]
    held_out: list[Document]

    @property
    def digest(self) -> str:
        """SHA-256 over all names and texts: equal digests mean equal training text."""
        sha = hashlib.sha256()
        for document in (*self.train, *self.held_out):
            sha.update(f"{document.name}\0{document.text}\0".encode())
        return sha.hexdigest()


def is_held_out(name: str) -> bool:
    """Whether the file `name` is kept from training: one name in `HELD_OUT_ONE_IN`, by hash."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % HELD_OUT_ONE_IN == 0


def standard_library(max_documents: int | None = None) -> Corpus:
    """The corpus of the running interpreter; `max_documents` keeps only the first so many, for a trial run."""
    documents = sorted((*_sources(), *_help_topics()))[:max_documents]
    return Corpus(
        train=[document for document in documents if not is_held_out(document.name)],
        held_out=[document for document in documents if is_held_out(document.name)],
    )


def _sources() -> list[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if _SKIPPED_DIRS.isdisjoint(relative.parts):
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
            documents.append(Document(relative.as_posix(), text))
    return [document for document in documents if document.text.strip()]


def _help_topics() -> list[Document]:
    from pydoc_data.topics import topics

    return [Document(f"help/{name}", text) for name, text in topics.items()]
