"""Small tokenizers of models that think, with marks as ordinary tokens, as special tokens, or as plain text."""

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from deployments.engines.reasoning import PLAIN_TEXT
from tests.engine.vocabularies import byte_level

QWEN3_TEMPLATE = """{%- for message in messages %}
    {%- if message.role == "assistant" and '</think>' in message.content %}
        {{- '<|im_start|>assistant\\n' + message.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
"""Qwen3's, as published, without its parts on tools and on the thinking of earlier turns."""
DEEPSEEK_R1_TEMPLATE = """{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<｜Assistant｜>' + content + '<eos>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"""
"""DeepSeek-R1's, as published, without its parts on system prompts and tools: it opens the thought in the prompt."""
PIECES = ["\n\n", ".\n", ".\n\n", "ab", ">\n", ">\n\n", "</", "<", "think"]


def thinking_vocabulary(marks: str, template: str = "") -> PreTrainedTokenizerFast:
    """``marks``: ``tokens``, ``special`` or ``text``."""
    tokenizer = byte_level(PIECES)
    opening, closing = ("[THINK]", "[/THINK]") if marks == "special" else ("<think>", "</think>")
    if marks != "text":
        special = marks == "special"
        tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in (opening, closing)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    if template:
        tokenizer.chat_template = template
    return tokenizer


PARSERS = {"tokens": "qwen3", "special": "mistral", "text": PLAIN_TEXT}
