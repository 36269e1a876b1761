"""Steps written one by one, by a model of when a vLLM engine stops."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from deployments.engines.step_splitter import StepSplitter


def one_by_one(
    splitter: StepSplitter, tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]
) -> list[tuple[int, ...]]:
    """Splits these tokens as an engine would write them that is asked for one step at a time, and asked again as long
    as there is no step.

        A request stops at the first token of ``stop.token_ids``, and at the first token with which its text contains
        one of ``stop.strings``; the text of a request begins with its own first token."""
    steps: list[tuple[int, ...]] = []
    start = asked = 0
    for end, token in enumerate(token_ids, 1):
        text = tokenizer.decode(list(token_ids[asked:end]), skip_special_tokens=True)
        if token in splitter.stop.token_ids or any(string in text for string in splitter.stop.strings):
            asked = end
            if tokenizer.decode(list(token_ids[start:end])).strip():
                steps.append(tuple(token_ids[start:end]))
                start = end
    return steps if start == len(token_ids) else [*steps, tuple(token_ids[start:])]
