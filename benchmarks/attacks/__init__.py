"""Fifteen ways in which one key with small rights, or none, could stop everybody else.

``catalog`` says what each attack sends; ``python -m benchmarks.attacks`` measures a small request beside each, and
`tests/faults/test_attacks.py` sends all of them at once.
"""
