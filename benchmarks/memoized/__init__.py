"""The embedded models behind the ports of a search, without an engine: every prefix is read once and remembered.

The models are so sure of most tokens that the searches of a problem, whatever their strategies and widths, write the
same prefixes again and again. So all strategies together cost little more than the widest of them. For accuracy and
for counts of tokens; seconds, calls in flight and cache hits are the engines' to tell.
"""

from benchmarks.memoized.models import MemoizedModels, ProblemMemo

__all__ = ["MemoizedModels", "ProblemMemo"]
