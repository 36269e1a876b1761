"""Poison of the tests' own: characters that end the engine of the prompt in which they are.

Engines have it with `ENGINE_ARGS`. Create a `Poison` before Ray starts, whose processes inherit its environment
variable. Nothing is poisonous before a test arms it: other tests send the same characters.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "BANYAN_TEST_POISON"
AT_ONCE = "~"
"""Ends a generator that reads it."""
LATER = "^"
"""Ends a generator that has `LATER_TOKENS` tokens to read or to write behind it."""
SCORED = "|"
"""Ends a reward model that reads it."""
LATER_TOKENS = 30
ENGINE_ARGS = {"scheduler_cls": "tests.faults.poison.poisoned_scheduler"}
"""``engine_args`` of the generator, and of a reward model."""


class Poison:
    """The test's side."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "ended"
        self._file.touch()
        os.environ[VARIABLE] = str(self._file)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Context in which the characters are poisonous."""
        armed = _armed(self._file)
        armed.touch()
        try:
            yield
        finally:
            armed.unlink()

    @property
    def ended(self) -> Counter[str]:
        """Number of engines that each character has ended."""
        return Counter(self._file.read_text().split())


def _armed(ended: str | Path) -> Path:
    return Path(ended).with_suffix(".armed")


def poisoned_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """The engine's side: the scheduler that the engine would have, which dies of a poisonous request."""
    from transformers import AutoTokenizer
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from deployments.engines.step_scheduler import StepScheduler

    tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)
    scores = vllm_config.model_config.runner_type == "pooling"
    deadly = {SCORED: 0} if scores else {AT_ONCE: 0, LATER: LATER_TOKENS}
    ids = {tokenizer.convert_tokens_to_ids(character): character for character in deadly}
    file = os.environ.get(VARIABLE, "")
    plain: Any = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    base: Any = StepScheduler if scores else plain

    class Poisoned(base):  # type: ignore[misc]
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            scheduled = super().schedule(*args, **kwargs)
            for request_id in scheduled.num_scheduled_tokens if file and _armed(file).exists() else ():
                tokens = list(self.requests[request_id].all_token_ids)
                for place, token in enumerate(tokens):
                    if token in ids and len(tokens) - place > deadly[ids[token]]:
                        with open(file, "a") as ended:
                            ended.write(f"{ids[token]}\n")
                        raise RuntimeError("a poisonous request")
            return scheduled

    return Poisoned(vllm_config=vllm_config, **arguments)
