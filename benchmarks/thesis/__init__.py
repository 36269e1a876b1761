"""What decoupling generator and reward model is about: batch fill, the split of KV memory, KV use, hits and thrash.

``python -m benchmarks.thesis CONFIG PROBLEMS`` measures a pair of models and writes docs/performance/.
"""
