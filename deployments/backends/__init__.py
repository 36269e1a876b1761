"""Models that somebody else's server serves, behind a URL: the same ports as our engines, over HTTP.

Imports neither ray nor vllm nor torch nor transformers: it works where only the library is installed.
"""
