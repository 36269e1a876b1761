"""The turns before a question: a system turn of any kind, an earlier question with its answer, or nothing.

The embedded models know nothing but arithmetic. They must learn to ignore system turns of any content and length, so
that the first chat window that someone opens works. The texts are random: words from lists, invented words, numbers,
words of the problems themselves, markup, and noise.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from deployments.embedded.problems import LEVELS, Problem, Split, draw_problems

MAX_SYSTEM_CHARS = 450
SHARES = {"none": 0.5, "short": 0.25, "medium": 0.13, "long": 0.04, "history": 0.08}
"""Probability of each kind of turns before a question. All rows of a batch have the same kind, so that they are about
equally long."""
CHARS = {"short": (2, 40), "medium": (40, 140), "long": (140, MAX_SYSTEM_CHARS)}
HISTORY_SYSTEM_SHARE = 0.5
"""Share of questions after an earlier question that also have a short system turn."""

Turn = dict[str, str]
"""``role`` and ``content``, as a chat template takes them."""


class Conversation(NamedTuple):
    """A problem, and the turns before it."""

    problem: Problem
    before: tuple[Turn, ...] = ()

    @property
    def turns(self) -> list[Turn]:
        return [*self.before, {"role": "user", "content": self.problem.text}]


def conversations(problems: Sequence[Problem], rng: random.Random, delimiter: str) -> list[Conversation]:
    """Puts turns of one random kind before all ``problems``; ``delimiter`` ends a step."""
    [kind] = rng.choices(list(SHARES), list(SHARES.values()))
    if kind == "none":
        return [Conversation(problem) for problem in problems]
    if kind == "history":
        earlier = draw_problems(Split.TRAIN, rng.randrange(1 << 30), rng.choice(list(LEVELS)))
        with_system = rng.random() < HISTORY_SYSTEM_SHARE
        return [
            Conversation(problem, (*_system(rng, "short", with_system), *_answered_question(next(earlier), delimiter)))
            for problem in problems
        ]
    least, most = CHARS[kind]
    chars = rng.randint(least, most)
    return [Conversation(problem, (_system_turn(rng, chars),)) for problem in problems]


def system_text(rng: random.Random, chars: int) -> str:
    """A random text of about ``chars`` characters for a system turn."""
    pieces: list[str] = []
    written = 0
    separator = rng.choice((" ", " ", " ", "\n", "\n\n", "\n- "))
    while written < chars:
        piece = rng.choice(_PIECES)(rng)
        pieces.append(piece)
        written += len(piece) + len(separator)
    return separator.join(pieces)[:chars].strip() or "Hi"


def _system(rng: random.Random, kind: str, wanted: bool) -> tuple[Turn, ...]:
    return (_system_turn(rng, rng.randint(*CHARS[kind])),) if wanted else ()


def _system_turn(rng: random.Random, chars: int) -> Turn:
    return {"role": "system", "content": system_text(rng, max(2, round(chars * rng.uniform(0.85, 1.0))))}


def _answered_question(problem: Problem, delimiter: str) -> tuple[Turn, ...]:
    return (
        {"role": "user", "content": problem.text},
        {"role": "assistant", "content": delimiter.join(problem.solution)},
    )


def _sentence(rng: random.Random) -> str:
    pattern = rng.choice(_PATTERNS)
    while (start := pattern.find("{")) >= 0:
        end = pattern.index("}", start)
        pattern = pattern[:start] + rng.choice(_words_for(pattern[start + 1 : end])) + pattern[end + 1 :]
    return pattern


def _words(rng: random.Random) -> str:
    every = [word for kind in _WORDS for word in _words_for(kind)]
    text = " ".join(rng.choice(every) for _ in range(rng.randint(1, 8)))
    return rng.choice((text, text.capitalize() + ".", text.upper(), text + "!", text.title()))


@cache
def _words_for(kind: str) -> list[str]:
    return [word.replace("_", " ") for word in _WORDS[kind].split()]


def _invented(rng: random.Random) -> str:
    syllables = ("".join(rng.choice(part) for part in _SYLLABLE) for _ in range(rng.randint(1, 12)))
    return "".join(syllable + rng.choice(("", "", " ", ", ", ". ")) for syllable in syllables)


def _numbers(rng: random.Random) -> str:
    pattern = rng.choice(_NUMBER_PATTERNS)
    return pattern.format(*(rng.randint(0, rng.choice((9, 99, 999, 3000))) for _ in range(3)))


def _task_words(rng: random.Random) -> str:
    return rng.choice(_TASK_SENTENCES).replace("#", str(rng.randint(2, 99)))


def _noise(rng: random.Random) -> str:
    letters = rng.choice(_ALPHABETS)
    return "".join(rng.choice(letters) for _ in range(rng.randint(1, 20)))


_PIECES = (_sentence,) * 6 + (_words,) * 2 + (_invented, _numbers, _task_words, _noise)

_PATTERNS = (
    "You are a {adjective} {person}.",
    "You are {name}, a {adjective} {person} who can {verb} {thing}.",
    "Be {adjective}.",
    "Please be {adjective} and {adjective}.",
    "Always {verb} the {thing} {manner}.",
    "Never {verb} a {thing}.",
    "Do not {verb} {thing} unless the {person} asks.",
    "Answer {manner}.",
    "Answer in {language}.",
    "Speak like a {person}.",
    "Your name is {name}.",
    "If you do not know the {thing}, say so.",
    "Think {manner} before you {verb}.",
    "The {person} is {adjective} and wants a {adjective} {thing}.",
    "Keep it {adjective}.",
    "{verb} the {thing}, then {verb} the {thing}.",
    "Use {adjective} {thing} only.",
    "We {verb} {thing} for {adjective} people.",
    "This is a {thing} about {thing}.",
    "Here are the {thing} of {name}:",
    "You can {verb}, {verb} and {verb}.",
    "When the {person} says {thing}, {verb} {manner}.",
)

_WORDS = {
    "adjective": """nice kind short brief careful honest friendly polite clear exact formal calm strict warm smart quick
        patient funny serious concise detailed neutral creative expert skilled gentle modern simple safe wise bold
        cheerful curious humble direct thorough precise good great best young old new senior private public useful""",
    "person": """teacher tutor pirate doctor lawyer poet guide expert coach writer student friend engineer scientist
        bot model chef judge editor librarian robot pilot child parent user customer clerk analyst agent mentor""",
    "name": "Ada Max Lena Bob Alice Sam Nova Iris Otto Zoe Kim Leo Mia Finn Orion Banyan Ravi Chen Omar Sofia",
    "verb": """explain answer write check show tell repeat count list read help solve compare describe ask plan mention
        use give guess translate sum quote cite format review correct improve test skip avoid follow include think""",
    "thing": """steps answers words questions facts rules numbers sentences lines examples reasons opinions sources
        markdown tables lists code math stories jokes emojis units results mistakes details tools names dates weather
        music history science language problem reply question task text format style tone title note message request""",
    "manner": """briefly slowly carefully politely in_detail in_one_line step_by_step as_briefly_as_possible with_care
        honestly quickly at_once twice without_hurry in_plain_words like_a_friend""",
    "language": "English German French Spanish Hindi Italian Dutch Latin Chinese Arabic Swahili Polish",
}
"""Words for the placeholders in `_PATTERNS`, separated by spaces; an underscore is a space within a word."""

_NUMBER_PATTERNS = (
    *("{}", "{}, {}, {}", "{} = {}", "{} + {} = {}", "Use at most {} words.", "Rule {}:", "{}-{}-{}", "It is {}:{}."),
    *("{} times {} is {}.", "{} - {}", "{} * {}", "Page {} of {}.", "{}.", "v{}.{}", "[{}]", "The year is {}."),
)

_TASK_SENTENCES = (
    *("Go step by step.", "Write one operation in each line.", "Multiply before you add.", "Check each step."),
    *("The user asks what the result is.", "Start with the first number.", "Show your work, then give the result."),
    *("What is the result?", "Where do you end?", "What do you get?", "Put the answer in \\boxed{}."),
    *("End with \\boxed{answer}.", "The answer is \\boxed{#}", "Add #.", "Subtract #.", "Start with #."),
    *("Multiply by #.", "Take #. Increase by #.", "Begin at #. Go down by #."),
)
"""``#`` stands for a number."""

_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz ", "#*-_=+<>/|`~ \n", "éüßñçøåß ", "日本語中文한국 ", "😀🌳⚙️ ", "0123456789 ")

_SYLLABLE = ("bcdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s", "t", "l", "m"))
