"""The embedded models behind a search's ports, without an engine: every prefix is computed once and remembered.

The models are so sure of most tokens that all searches of a problem, whatever their strategy and width, write the same
prefixes again and again. So all strategies together cost little more than the widest of them. Use it for accuracy and
token counts; seconds, calls in flight and cache hits need real engines.
"""

from benchmarks.memoized.models import MemoizedModels, ProblemMemo

__all__ = ["MemoizedModels", "ProblemMemo"]
