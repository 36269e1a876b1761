"""Answers: from the text of a path to the group of answers that wins.

1. A text to its answer, as written: `thoughts` leaves out what was thought, `extraction` finds the answer.
2. An answer to the values that it may have: `notation` and `canonical` unify its spelling, `forms` says what kind of
   value it is, and where that takes computer algebra, `equivalence_worker` evaluates it with math-verify and sympy.
3. Values to groups: `equivalence` reads the answers of a search, `readings` groups them, `voting` selects one group.

It knows neither trees nor strategies: `search.run.answer_selection` walks the tree and asks here. It does not score
paths and does not decide when a search ends.
"""
