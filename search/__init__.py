"""PRM-guided tree search: trees, strategies and the loop that runs them against two ports.

Pure Python: knows nothing of Ray, vLLM or HTTP. ``search.ports`` is all that it asks of the world.
"""
