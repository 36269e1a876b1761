"""Texts with the answer that math-verify extracts and the one that we extract, and the reason where they differ.

``test_answers_beside_math_verify.py`` runs both on every row.
"""

from typing import NamedTuple


class Text(NamedTuple):
    """A text, with or without an answer."""

    text: str
    math_verify: str | None
    """The last text that ``parse`` returns for its result; None for no result."""
    ours: str | None
    why: str = ""
    """Reason for the difference; only given where the two differ."""


TEXTS = [
    Text(r"so \boxed{42}.", "42", "42"),
    Text(
        r"first \boxed{1}, no: \boxed{2}",
        "1,2",
        "2",
        "The last box counts; math-verify joins boxes that stand close together.",
    ),
    Text(r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
    Text(r"\boxed{\{1, 2\}}", r"\{1, 2\}", r"\{1, 2\}"),
    Text(r"\boxed {7}", None, "7", "LaTeX allows the space."),
    Text(r"\fbox{7}", None, "7", "MATH's own solutions use it now and then."),
    Text(r"\boxed{12", None, None),
    Text(r"\boxed{5} and then \boxed{12", "5", "5"),
    Text(r"\boxed{}", None, None),
    Text(r"\[ \boxed{x=5} \]", "x=5", "x=5"),
    Text(r"$\boxed{2}$ and $\boxed{3}$", "2 and 3", "2, 3", "The boxes of one sentence, as a list; it is the same."),
    Text(r"\boxed{2} or \boxed{3}", "2,3", "2, 3", "The boxes of one sentence, as a list; it is the same."),
    Text("The answer is 42.", "42", "42"),
    Text("The answer is: 42", "42", "42"),
    Text("The answer is:\n42", "42", "42"),
    Text("The answer is:\n\n$42$", "42", "42"),
    Text("The answer is:\n\\[\n42\n\\]", "42", "42"),
    Text("The answer is:\n$$\nx = 5\n$$", "x = 5", "x = 5"),
    Text("Final Answer: The final answer is $12$. I hope it is correct.", "12", "12"),
    Text(r"Final Answer: The final answer is $\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}", r"\frac{1}{2}"),
    Text("Final Answer: The final answer is $(1,2)$. I hope it is correct.", "(1,2)", "(1,2)"),
    Text("So 6 * 7 = 42\n#### 42", "42", "42"),
    Text("#### -1,234", "-1234", "-1,234", "As written; it is the same number."),
    Text("#### $18", "18", "18"),
    Text("#### Step 2: check", "2", None, "A heading of Markdown; GSM8K's mark stands before a number alone."),
    Text("#### 3 ways to go on", "3", None, "A heading of Markdown; GSM8K's mark stands before a number alone."),
    Text("**Answer:** 42", "42", "42"),
    Text("**Answer**: 42", "42", "42"),
    Text("**Answer: 42**", "42**", "42", "math-verify takes the asterisks along."),
    Text("**Final Answer**\n\n42", "42", "42"),
    Text("**Final Answer:**\n\n42", "42", "42"),
    Text("Answer:\n42", "42", "42"),
    Text("ANSWER: 42", "42", "42"),
    Text("A: 42", "42", "42"),
    Text("Q: What is 6 * 7?\nA: 42", "42", "42"),
    Text("A: 3\nB: 4\nC: 5", "5", None, "These are choices: an answer after A: stands in the last line."),
    Text("The answer is (B).", None, "(B)", "math-verify wants to be told of choices."),
    Text("The correct answer is B", None, "B", "math-verify wants to be told of choices."),
    Text("Answer: $x=5$", "x=5", "x=5"),
    Text("The answer is $5$ apples.", "5", "5"),
    Text("The answer is 5 apples.", "5", "5 apples", "With its unit, as written; it is the same number."),
    Text("The answer is $5 per hour.", "5", "5 per hour", "With its unit, as written; it is the same number."),
    Text("The answer is $1,200.", "1200", "1,200", "As written; it is the same number."),
    Text("The answer is 3.5. Really.", "3.5", "3.5"),
    Text("The answer is .5", "0.5", ".5", "As written; it is the same number."),
    Text("The answer is 50%.", "50", "50%", "As written: the sign belongs to the answer."),
    Text(r"The answer is $50\%$.", r"50\%", r"50\%"),
    Text("The answer is $50$%.", "50", r"50\%", "As written: the sign belongs to the answer."),
    Text("The answer is -7.", "-7", "-7"),
    Text("the answer is 1\nno, the answer is 2", "2", "2"),
    Text("The answers are 2 and 3.", "2", "2 and 3", "The whole sentence; math-verify takes the first number."),
    Text(
        "The answers are $2$ and $3$.", "2 and 3", "$2$ and $3$", "As written; dollars are dropped when it is compared."
    ),
    Text(r"The answer is \(5\).", "5", "5"),
    Text(r"The answer is \(\frac{3}{4}\) of it.", r"\frac{3}{4}", r"\frac{3}{4}"),
    Text("The answer to the question is 9.", "9", "9"),
    Text("The answer is **9**.", "9**.", "9", "math-verify takes the asterisks and the full stop along."),
    Text("The answer is Tuesday.", None, "Tuesday", "math-verify knows only formulas."),
    Text(
        "The answer is yes, because 7 is prime.",
        "7",
        "yes",
        "math-verify knows only formulas, and takes the number after it.",
    ),
    Text("Therefore x = 7", "7", None, "Nothing announces an answer; math-verify takes the last number of a text."),
    Text("The total is 18.", "18", None, "Nothing announces an answer; math-verify takes the last number of a text."),
    Text("I get 6 * 7 = 42.", "42", None, "Nothing announces an answer; math-verify takes the last number of a text."),
    Text("nothing here", None, None),
    Text("", None, None),
    Text(
        "Answer: To see this, note that every even number above 2 is a sum of two odd ones and so on.",
        "2",
        "To see this, note that every even number above 2 is a sum of two odd ones and so on",
        "An explanation in the same line is taken for the answer; math-verify takes a number in it.",
    ),
    Text(
        "Answer:\nTo see this, note that every even number above 2 is a sum of two odd ones.",
        "2",
        None,
        "A long line below is an explanation; math-verify takes a number in it.",
    ),
    Text("The answer is $x$ where $x=3$.", "3", "x", "The first formula after the phrase; math-verify takes the last."),
    Text("My answer: 12\nLet me check my answer: 12 is right.", "12", "12"),
    Text("The answer is 1 1/2.", "1 1/2.", "1 1/2", "math-verify takes the full stop along."),
    Text(
        r"The answer is 1\frac{1}{2}.",
        r"\frac{1}{2}",
        r"1\frac{1}{2}",
        "math-verify takes the fraction and leaves the whole.",
    ),
    Text("Answer: 10{,}000", "10", "10{,}000", "math-verify takes the digits up to the brace."),
    Text(r"The final answer is: $\boxed{7}$", "7", "7"),
    Text("Answer: 12\n\nHope this helps!", "12", "12"),
    Text("The answer is 2 + 3i.", "2", "2 + 3i", "math-verify takes the first number."),
    Text("Answer = 8", "8", "8"),
    Text("The answer is 7.5 cm.", "7.5", "7.5 cm", "With its unit, as written; it is the same number."),
    Text("The answer is 12 inches.", "12", "12 inches", "With its unit, as written; it is the same number."),
    Text("The answer is 1/2.", "1/2.", "1/2", "math-verify takes the full stop along."),
    Text("So the answer is\n\n12", "12", "12"),
    Text(
        "Answer: a NUL \u0000 and 3",
        "3",
        "a NUL \u0000 and 3",
        "The rest of the sentence, whatever it is; math-verify takes the number.",
    ),
    Text(r"The answer is $\$5$.", "5", r"\$5", "As written; it is the same number."),
    Text(r"answer: \text{(C)}", None, r"\text{(C)}", "math-verify wants to be told of choices."),
    Text("### Final Answer\n\n42", "42", "42"),
    Text("Final answer\n7 apples", "7", "7 apples", "With its unit, as written; it is the same number."),
    Text(r"The answer is \frac{1}{2} since half is left.", r"\frac{1}{2}", r"\frac{1}{2}"),
    Text("The final answer is 8, which is even.", "8", "8"),
]
