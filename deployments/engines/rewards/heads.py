"""Base classes of the families whose model has a head: numbers for every token, read where a step ends."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cachetools import LRUCache

from deployments.engines.encoding import ChatEncoder
from deployments.engines.rewards.family import Query, RewardFamily, Shapes, linear
from deployments.engines.settings import Runner

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase
    from vllm.config import PoolerConfig

    from deployments.engines.engine_calls import Output

CACHE_TOKENS = 500_000
"""Capacity of a cache of token ids, 25 MB at most. A family has one for questions and one for steps."""
ENTRY_TOKENS = 16
"""Overhead of a cache entry, counted in tokens."""
CHARACTERS_PER_TOKEN = 8
"""Characters of a text that take the memory of a token id, at four bytes each."""
MAX_ENTRY_TOKENS = CACHE_TOKENS // 8
"""Largest entry: a longer text is encoded whenever it is read."""


class Head(RewardFamily):
    """A family that scores all unscored steps of a path with one query and reads the rows of its tags."""

    runner: ClassVar[Runner] = "pooling"

    def __init__(self, settings: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.chat = ChatEncoder(tokenizer)
        self.start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
        """The tokenizer's beginning-of-text token, if there is one."""
        system = getattr(settings, "system_prompt", None)
        self.system = [] if system is None else [{"role": "system", "content": system}]

    @classmethod
    def pooler(cls) -> "PoolerConfig":
        from vllm.config import PoolerConfig

        # Not STEP pooling: it looks up tags by prompt position, in rows from which the cached prefix is missing.
        return PoolerConfig(tok_pooling_type="ALL")

    @classmethod
    def head_shapes(cls, config: "PreTrainedConfig") -> Shapes | None:
        return linear("score.", config.hidden_size, cls.classes) if cls.head is None else cls.head.shapes(config)

    @abstractmethod
    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        """The token ids of a path, up to where its last step is scored, and the position at which each step is scored.

        Raises:
            ValueError: a text is not valid Unicode.
        """

    def rewards_of(self, rows: "Tensor") -> "Tensor":
        """Turns a head's (steps, classes) numbers, in double precision, into (steps,) rewards: the sigmoid of a single
        number, or the softmax probability of all classes but the first one."""
        return rows[:, 0].sigmoid() if self.classes == 1 else rows.softmax(dim=-1)[:, 1:].sum(dim=-1)

    def prompt_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        return self.encode(question, steps)[0]

    def query(self, question: str, steps: Sequence[str], unscored: int) -> Query:
        from vllm import PoolingParams

        token_ids, tags = self.encode(question, steps)
        # The last position is always computed, so a query for one new step may read the prefix cache. Of several new
        # steps some may be cached (by a sibling), and their rows would be missing.
        params = PoolingParams(task="token_classify", use_activation=False, skip_reading_prefix_cache=unscored > 1)
        known = tags[-unscored - 1] + 1 if len(tags) > unscored else 0
        return Query(token_ids, params, tuple(tags[-unscored:]), known)

    def missing_rows(self, output: "Output", query: Query) -> int:
        # The rows of a cached prefix are missing at the front. A preempted request begins again, perhaps behind another
        # prefix. vLLM's older runner keeps the rows that it had, so there may be more rows than tokens.
        return len(query.token_ids) - len(output.outputs.data)

    def rewards(self, output: "Output", query: Query) -> list[float]:
        rows = output.outputs.data
        missing = self.missing_rows(output, query)
        wanted = [tag - missing for tag in query.tags]
        if rows.ndim != 2 or rows.shape[1] != self.classes or wanted[0] < 0:
            raise ValueError(f"the engine returned a tensor of {tuple(rows.shape)} for {len(query.token_ids)} tokens")
        return [float(reward) for reward in self.rewards_of(rows[wanted].double()).tolist()]


class StepwiseHead(Head):
    """A head whose input is question and steps, encoded one by one."""

    def __init__(self, settings: Any, tokenizer: "PreTrainedTokenizerBase") -> None:
        super().__init__(settings, tokenizer)
        self.questions = TokenCache(self.question_ids)
        self._steps = TokenCache(self.step_ids)

    def question_ids(self, question: str) -> list[int]:
        """The token ids before the first step: by default a chat in which it is the assistant's turn."""
        return self.chat.encode_chat([*self.system, {"role": "user", "content": question}])

    @abstractmethod
    def step_ids(self, step: str) -> list[int]:
        """The token ids of a step, which is scored at the last one."""

    def unread(self, question: str, steps: Sequence[str]) -> int:
        new = len(question) * (question not in self.questions)
        return new + sum(len(step) for step in steps if step not in self._steps)

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = list(self.questions[question])
        tags: list[int] = []
        for step in steps:
            token_ids += self._steps[step]
            tags.append(len(token_ids) - 1)
        return token_ids, tags


class LastTokenHead(Head):
    """A head whose input is encoded as a whole, and read at its last token: one query for each step."""

    step_by_step = True

    def encode(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        token_ids = self.path_ids(question, steps)
        return token_ids, [len(token_ids) - 1]

    @abstractmethod
    def path_ids(self, question: str, steps: Sequence[str]) -> list[int]:
        """The token ids of a path, of which the last step is scored at the last one; see ``encode``."""


class TokenCache:
    """Token ids by text: a step is encoded once for all paths through it. May be used in several threads."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._entries: LRUCache[str, _Entry] = LRUCache(CACHE_TOKENS, getsizeof=lambda entry: entry.size)
        self._lock = Lock()

    def __contains__(self, text: str) -> bool:
        return text in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, text: str) -> list[int]:
        with self._lock:
            if (found := self._entries.get(text)) is not None:
                return found.ids
        ids = self._encode(text)
        entry = _Entry(ids, len(ids) + len(text) // CHARACTERS_PER_TOKEN + ENTRY_TOKENS)
        if entry.size <= MAX_ENTRY_TOKENS:
            with self._lock:
                self._entries[text] = entry
        return ids


class _Entry(NamedTuple):
    ids: list[int]
    size: int
    """Memory of the entry with its text, in that of tokens."""
