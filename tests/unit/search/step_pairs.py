r"""Pairs of reasoning steps: whether they say the same, and whether our clusters take them for the same.

The steps are of the kinds that the embedded generator, SmolLM2, Qwen2.5-Math and the solutions of MATH and GSM8K write.
"""

from typing import Literal, NamedTuple

Verdict = Literal["same", "different"]


class Pair(NamedTuple):
    """Two steps that continue the same path."""

    a: str
    b: str
    truth: Verdict
    ours: Verdict
    why: str = ""
    """Reason for the difference; only given where the two differ."""


def same(a: str, b: str) -> Pair:
    return Pair(a, b, "same", "same")


def different(a: str, b: str) -> Pair:
    return Pair(a, b, "different", "different")


ARITHMETIC = [
    # The embedded generator's: bare sums.
    same("12 + 7 = 19\n\n", "12 + 7 = 19"),
    same("12 + 7 = 19\n\n", "7 + 12 = 19\n\n"),
    same("6 * 7 = 42", r"$6 \times 7 = 42$"),
    same(r"The answer is \boxed{42}", "So the final answer is 42."),
    different("12 + 7 = 19\n\n", "12 + 7 = 18\n\n"),
    different("12 + 7 = 19\n\n", "12 * 7 = 84\n\n"),
    different("12 - 7 = 5", "7 - 12 = 5"),
    different("200 - 96 = 104", "200 - 69 = 104"),
    different("2 * 2 = 4", "2 + 2 = 4"),
    different("2 * 3 + 4 = 10", "2 * 4 + 3 = 10"),
    different(r"The answer is \boxed{42}", r"The answer is \boxed{24}"),
    different("100 * 101 / 2 = 5050", "100 * 101 / 2 = 5051"),
    different(
        "Therefore the sum of the first hundred positive integers is 100 * 101 / 2 = 5050",
        "Therefore the sum of the first hundred positive integers is 100 * 101 / 2 = 5051",
    ),
]

WORD_PROBLEMS = [
    # In the style of GSM8K, SmolLM2 and Qwen.
    same(
        "First, we calculate the total cost of the apples: 3 * 4 = 12 dollars.",
        "To begin, let's find out how much the apples cost: 3 * 4 = $12.",
    ),
    same(
        "Natalia sold 48/2 = 24 clips in May.",
        "In May, Natalia sold 48 / 2 = 24 clips.",
    ),
    same(
        "Natalia sold 48/2 = 24 clips in May.",
        "Step 1: Find how many clips Natalia sold in May: 48 ÷ 2 = 24 clips",
    ),
    same(
        "She makes 9 * $2 = $18 every day at the farmer's market.",
        "So every day she makes 9 * 2 = 18 dollars at the market.",
    ),
    same("It takes 2/2 = 1 bolt of white fiber.", r"The white fiber takes $\frac{2}{2} = 1$ bolt."),
    same(
        "The profit was 1,250 - 750 = 500 dollars.",
        "That leaves a profit of $1250 - $750 = $500.",
    ),
    same("He ran 0.50 miles more than Tom.", "He ran .5 miles more than Tom did."),
    same(
        "**Step 2:** Now we add the two amounts: 15 + 27 = 42.",
        "## Step 2: Adding both amounts\nWe get 15 + 27 = 42.",
    ),
    same(
        "The remaining eggs are 16 - 3 - 4 = 9.",
        "There are 16 - 3 - 4 = 9 eggs left, so 9 eggs remain.",
    ),
    same(
        "Josh's profit is the sale price minus what he paid.",
        "The profit of Josh is the sale price minus what was paid by him.",
    ),
    same(
        "To solve this problem, we need to find the number of hours that Weng worked.",
        "We need to determine the number of hours Weng worked.",
    ),
    same(
        "There are 3 red balls and 5 blue balls in the bag.",
        "In the bag there are 5 blue balls and 3 red balls.",
    ),
    different(
        "Natalia sold 48/2 = 24 clips in May.",
        "Natalia sold 48*2 = 96 clips in May.",
    ),
    different(
        "Now we add the cost of the shirts: 12 + 30 = 42.",
        "Now we add the cost of the shoes: 12 + 45 = 57.",
    ),
    different(
        "First, we find how many pages Julie read yesterday.",
        "First, we find how much money Tom earns per week.",
    ),
    different(
        "We know that James writes a letter to two friends twice a week.",
        "There are 52 weeks in a year.",
    ),
    different("Add 5 and 7.", "Multiply 5 and 7."),
    different("There are 12 eggs in a box.", "There are 16 eggs in a box."),
    different("He pays 20% of 150.", "He pays 25% of 150."),
    different("The train needs 180 / 2.5 = 72 minutes.", "The train needs 180 / 2.4 = 75 minutes."),
    different("It is impossible to share them evenly.", "It is possible to share them evenly."),
    different("There are 5 red balls.", "There are 5 blue balls."),
    different("Alice has 3 + 4 = 7 apples.", "Bob has 3 + 4 = 7 apples."),
    different("Next we find the area of the circle.", "Next we find the area of the triangle."),
    different("Let's find the cost of the pens.", "Let's find the cost of the pencils."),
    different("We need to know how many boys are in the class.", "We need to know how many girls are in the class."),
    different("Now we convert the hours to minutes.", "Now we convert the meters to kilometers."),
    different("First we find how much Tom earns per day.", "First we find how much Tom spends per day."),
    same("First we find how much Tom earns per day.", "Let's calculate how much Tom earns every day."),
    same(
        "We are given that the rectangle has a length of 12 cm and a width of 5 cm.",
        "The length of the rectangle is 12 cm and its width is 5 cm.",
    ),
    same("Now convert the hours into minutes.", "Next, we need to convert hours to minutes."),
    same(
        "To find the answer, we need to calculate the total number of apples in all baskets.",
        "We calculate how many apples there are in total in all the baskets.",
    ),
    same(
        "Let's break this problem down into smaller steps.",
        "We can break down the problem step by step into smaller parts.",
    ),
    different(
        "Let's think about the speed of the train first.",
        "Let's draw a table of all the passengers.",
    ),
]

MATHEMATICS = [
    # In the style of MATH's solutions and Qwen2.5-Math.
    same("We factor the quadratic as $(x-5)(x-9)=0$.", "Factoring the quadratic gives $(x-5)(x-9) = 0$."),
    same(r"We have $2x + 3 = 7$, so $2x = 4$.", r"Since $3 + 2x = 7$, we get \(2x = 4\)."),
    same(r"Thus \[x = \frac{-b}{2a} = 4.\]", r"Hence $x = -b/(2a) = 4$."),
    same(r"Therefore, $x = \dfrac{1}{2}$.", r"So $x=\frac12$."),
    same(
        r"By the Pythagorean theorem, $AB^2 + BC^2 = AC^2$.",
        r"The Pythagorean theorem says that $AC^2 = AB^2 + BC^2$.",
    ),
    same(
        r"The sum of the interior angles of a triangle is $180^\circ$.",
        "The interior angles of any triangle sum to $180°$.",
    ),
    same(r"Squaring both sides, $x + 1 = 9$.", r"We square both sides and get $x+1=9$."),
    same(r"$x \le y$ holds by assumption.", "By assumption, x <= y holds."),
    same("Let $n$ be the number of marbles.", "Let n denote the number of marbles."),
    same(
        "We use induction on $n$.",
        "The proof goes by induction on $n$.",
    ),
    same(
        r"Substituting $x = 3$ into the first equation gives $y = 5$.",
        r"We substitute $x=3$ in the first equation to get $y=5$.",
    ),
    different(r"So $x = 1$ and $y = 2$.", r"So $x = 2$ and $y = 1$."),
    different(r"$2^x = 8$", r"$x^2 = 8$"),
    different(r"Hence $x < 3$.", r"Hence $x > 3$."),
    different(r"The probability is $\frac{3}{8}$.", r"The probability is $\frac{8}{3}$."),
    different(r"The roots are $5$ and $9$.", r"The roots are $5$ and $-9$."),
    different(r"Then $\sin x = \frac12$.", r"Then $\cos x = \frac12$."),
    different(r"$\sqrt{x+1} = 3$", r"$\sqrt{x} + 1 = 3$"),
    different("Thus $n$ is even.", "Thus $n$ is odd."),
    different("The function is increasing on the interval.", "The function is decreasing on the interval."),
    different("So n is not divisible by 3.", "So n is divisible by 3."),
    same("Let $x$ be the number of adults at the fair.", "Let $x$ denote the number of adults who came to the fair."),
    different("Let $x$ be the number of adults at the fair.", "Let $x$ be the number of children at the fair."),
    different("The triangle is isosceles.", "The triangle is equilateral."),
    different("We substitute into the first equation.", "We substitute into the second equation."),
    same("The triangle is isosceles.", "So we have an isosceles triangle."),
    different("We use induction on $n$.", "We argue by contradiction."),
    different(
        "We complete the square.",
        "We use the quadratic formula.",
    ),
    different(
        r"By the Pythagorean theorem, $AB^2 + BC^2 = AC^2$.",
        r"By the law of cosines, $AC^2 = AB^2 + BC^2 - 2 AB \cdot BC \cos B$.",
    ),
    different(
        "We will use Vieta's formulas to find the sum of the roots.",
        "We will factor the polynomial to find each root.",
    ),
    different(
        "Let's list the divisors of 36 one by one.",
        "The prime factorization of 36 shows how many divisors there are.",
    ),
]

LIMITS = [
    Pair("Hence a < b.", "Hence $a < b$.", "same", "different", "Outside of a formula the letter a is an article."),
    Pair(
        "We find the cost of one red pen that Mary buys with her brother at the school shop.",
        "We find the cost of one blue pen that Mary buys with her brother at the school shop.",
        "different",
        "same",
        "Among many words one makes little difference.",
    ),
    Pair("So $2(x + 1) = 8$.", "So $2x + 2 = 8$.", "same", "different", "Nothing is computed."),
    Pair("There are twelve eggs.", "There are 12 eggs.", "same", "different", "Numbers in words are words."),
    Pair("The price is 1/2 dollar.", "The price is 0.5 dollars.", "same", "different", "A quotient is a formula."),
    Pair(
        "The car is quicker than the bike.",
        "The automobile has a higher velocity.",
        "same",
        "different",
        "Words are compared by their letters.",
    ),
    Pair(
        "Subtracting 3 from both sides, $2x = 4$.",
        "So $2x = 4$.",
        "same",
        "different",
        "What one step mentions and the other does not might matter.",
    ),
    Pair(
        "After the second day Alice has 3 + 4 = 7 apples.",
        "After the second day Bob has 3 + 4 = 7 apples.",
        "different",
        "same",
        "Who a sum is about weighs no more than any word.",
    ),
    Pair(
        "There are 3 red balls and 5 blue balls.",
        "There are 5 red balls and 3 blue balls.",
        "different",
        "same",
        "In prose the order of numbers does not count.",
    ),
]

LATER = [
    # Written after the threshold on words was chosen on the pairs above: a test set that the choice has not seen.
    same("Next, multiply 24 by 3 to get 72.", "24 times 3 is 72."),
    same("The area is $8 \\cdot 5 = 40$ square feet.", "So the area is 8 * 5 = 40 square feet."),
    same("The total number of students is 12 + 18 = 30.", "Altogether there are 12 + 18 = 30 students."),
    same("She has 20 - 8 = 12 cookies left.", "Subtract: 20 - 8 = 12 cookies are left over."),
    same("We start by finding the derivative of $f$.", "First, find the derivative of $f$."),
    same("Let the width be $w$; then the length is $2w$.", "If the width is $w$, the length is $2w$."),
    same("Therefore the probability is $\\frac{1}{6}$.", "The probability is therefore equal to 1/6."),
    same("So $P = \\frac16$.", "So $P = \\dfrac{1}{6}$."),
    same("So $x = \\frac{\\sqrt3}{2}$.", "So $x = {\\sqrt{3} \\over 2}$."),
    same("Hence $\\boxed{\\mathbf{v}} = 3$.", "Hence $v = 3$."),
    same("The rate is $50\\%$ of 8.", "The rate is 50% of 8."),
    different("The rate is $50\\%$.", "The rate is 50."),
    same("It is $\\operatorname{sin} x = 1$.", "It is $\\sin x = 1$."),
    same("Now we can plug $x=2$ into $f(x)=x^2+1$.", "Plugging $x = 2$ into $f(x) = x^2 + 1$:"),
    same(
        "This is a right triangle, so we can use the Pythagorean theorem.",
        "Since it is a right triangle, the Pythagorean theorem applies.",
    ),
    same("Dividing both sides by $3$ gives $x = 5$.", "We divide both sides by 3, and so $x=5$."),
    Pair(
        "There are 6 ways to choose the first digit.",
        "The first digit can be chosen in 6 ways.",
        "same",
        "different",
        "Irregular forms are words of their own.",
    ),
    same("The sum of all the ages is 36.", "The ages sum to 36."),
    same("Let's denote the speed of the boat by $b$.", "Denote the boat's speed by $b$."),
    same("The number 91 is not prime, since 91 = 7 * 13.", "91 is not a prime number because $7 \\cdot 13 = 91$."),
    same("Let me think about this step by step.", "Let's think step by step."),
    different("Next, multiply 24 by 3 to get 72.", "Next, add 24 and 3 to get 27."),
    different("The total number of students is 12 + 18 = 30.", "The total number of students is 12 + 18 = 31."),
    different("The area is $8 \\cdot 5 = 40$.", "The perimeter is $2(8 + 5) = 26$."),
    different("We find the derivative of $f$.", "We find the integral of $f$."),
    different("We find the derivative of $f$.", "We find the derivative of $g$."),
    different("Let the width be $w$.", "Let the length be $w$."),
    different("The sum of the ages is 36.", "The product of the ages is 36."),
    different("There are 6 ways to choose the first digit.", "There are 5 ways to choose the second digit."),
    different("There are 6 ways to choose the first digit.", "There are 6 ways to choose the last digit."),
    different("Hence $f$ is continuous.", "Hence $f$ is differentiable."),
    different("We now consider the case $n = 1$.", "We now consider the case $n = 2$."),
    different("Let's consider the boys first.", "Let's consider the girls first."),
    different("The answer must be less than 10.", "The answer must be greater than 10."),
    different("So 3 of the 8 marbles are red.", "So 5 of the 8 marbles are blue."),
    different("By symmetry the two angles are equal.", "By Vieta's formulas the two angles are equal."),
]

PAIRS = [*ARITHMETIC, *WORD_PROBLEMS, *MATHEMATICS, *LATER, *LIMITS]
