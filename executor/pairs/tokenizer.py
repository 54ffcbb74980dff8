"""The tokenizer of the pair `tiny`: byte-level BPE, so that any text has ids and decodes back to itself.

Who uses it: `train_tiny` and the tests; everyone else loads the stored files through transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.pairs.corpus import Document

if TYPE_CHECKING:
    from torch import Tensor

END_OF_TEXT = "<|endoftext|>"
"""Id 0: opens and closes every document, pads, and stops generation."""


def train_tokenizer(documents: Sequence[Document], vocab_size: int, directory: Path) -> None:
    """Learn the merges from `documents` and store the tokenizer in `directory` as transformers reads it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Runs of spaces stay whole (indentation), a word takes its leading space, digits go one by one.
    pieces = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\n[ ]*|[ ]+(?= )|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(directory)


def load_tokenizer(directory: Path) -> Any:
    """The stored tokenizer, as transformers loads it for everyone."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def encode_all(tokenizer: Any, documents: Sequence[Document]) -> Tensor:
    """One stream [n] (int16) of all documents, each opened by the end-of-text token."""
    import torch

    ids: list[int] = []
    for row in tokenizer([document.text for document in documents], add_special_tokens=False)["input_ids"]:
        ids.append(tokenizer.bos_token_id)
        ids.extend(row)
    return torch.tensor(ids, dtype=torch.int16)
