"""Texts of a model on a terminal."""


def printable(text: str) -> str:
    """The text without terminal control characters: a model may write anything."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)
