"""Scripts by which SmolLM2-135M-Instruct talks to itself: prompts of its own making, and its answers to them.

Who uses it: `train_smollm2`. A distillation needs much and varied text by the target; the target writes the
questions too, so none is taken from a data set. A question starts with one of a few dozen openers, goes on at
temperature 1, and is answered greedily or at temperature 1. A share of the rows is plain text without chat marks, as
a prompt that is merely continued would be.
"""

from __future__ import annotations

import random
from typing import Any

from executor.pairs.teacher import GREEDY, SAMPLED, Script, fixed

OPENERS = (
    *("Write a", "Write a short", "Write a Python function that", "Explain", "Explain why", "Explain how"),
    *("What is", "What are", "What does", "What happens when", "How do I", "How does", "How many", "How can"),
    *("Why do", "Why is", "Why does", "When did", "Where is", "Who was", "Which", "Can you", "Could you"),
    *("Give me", "Give three", "List", "List five", "Name", "Describe", "Summarize", "Compare", "Define"),
    *("Translate", "Rewrite", "Solve", "Calculate", "Find the", "Prove that", "If a", "Suppose", "A store"),
    *("I am", "I have a", "I want to", "I need", "I feel", "My", "My friend", "Tell me", "Tell me about"),
    *("Hello", "Hi!", "Let us", "Do you", "Is it", "Are there", "Should I", "Help me", "Plan a", "Create a"),
    *("Design", "Make a", "Imagine", "In the", "The", "There are", "Once upon a time", "Imagine that", "For"),
    *("def ", "class ", "import ", "# ", "for i in", "SELECT", "Fix this", "Sort", "Given a", "Implement"),
)
_LONGEST_QUESTION = 48
_SYSTEM_SHARE = 0.6  # of the chats: the rest leave the default system message out
_GREEDY_SHARE = 0.65


class SelfChat:
    """Makes scripts for one tokenizer; each script stays at its style and carries on, question after question."""

    def __init__(self, tokenizer: Any, plain_share: float) -> None:
        self._tokenizer = tokenizer
        self._plain_share = plain_share
        self._end: int = tokenizer.eos_token_id
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "\0"}], tokenize=False)
        self._system = self._ids(chat[: chat.index("<|im_start|>user")])
        self._user = self._ids("<|im_start|>user\n")
        self._answer = self._ids("\n<|im_start|>assistant\n")
        self._line = self._ids("\n")
        self._openers = [self._ids(opener) for opener in OPENERS]

    def script(self, rng: random.Random) -> Script:
        """One row in a style drawn from `rng`."""
        choice = GREEDY if rng.random() < _GREEDY_SHARE else SAMPLED
        if rng.random() < self._plain_share:
            return self._plain(rng, choice)
        return self._chat(rng, choice, with_system=rng.random() < _SYSTEM_SHARE)

    def _plain(self, rng: random.Random, choice: int) -> Script:
        length = rng.randint(8, _LONGEST_QUESTION)
        while True:
            yield from fixed(rng.choice(self._openers))
            for _ in range(length):
                if (yield SAMPLED) == self._end:
                    break
            while (yield choice) != self._end:
                pass

    def _chat(self, rng: random.Random, choice: int, *, with_system: bool) -> Script:
        if with_system:
            yield from fixed(self._system)
        while True:
            yield from fixed(self._user)
            yield from fixed(rng.choice(self._openers))
            for _ in range(_LONGEST_QUESTION):
                if (yield SAMPLED) == self._end:
                    break
            else:
                yield self._end
            yield from fixed(self._answer)
            while (yield choice) != self._end:
                pass
            yield from fixed(self._line)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
