"""A published model on published problems: what each strategy makes of the same number of tokens.

Qwen2.5-Coder-0.5B-Instruct on GSM8K, with a reward model that `banyan train-prm` makes of solutions to problems of the
training split. Every part appends rows to JSONL files and goes on where an earlier session ended:

1. ``sample``: whole solutions of each problem, for training and as the pool of greedy, majority and best-of-n.
2. ``export``: solutions of training problems in the form that `banyan train-prm` takes.
3. ``score``: rewards of the pool's steps.
4. ``search``: beam search, DVTS and particles on the problems of the pool.
5. ``report``: the tables, from the rows alone.
"""
