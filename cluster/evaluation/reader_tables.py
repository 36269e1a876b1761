"""The card of a reader as a table for a terminal."""

from rich.table import Table

from search.reader_card import ReaderCard


def reader_table(card: ReaderCard) -> Table:
    """Every reading that a card has measured, beside the vote alone; narrow enough for 80 columns."""
    table = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    headings = ("contested", "problems", "vote", "readers", "pool", "of all", "less the vote", "95% interval")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in card.readings:
        gain = each.gain
        table.add_row(
            f"< {each.contested:g}",
            f"{each.problems:,}",
            *(f"{share:.1%}" if each.problems else "–" for share in (each.vote, each.read, each.pool)),
            f"{gain.accuracy:.1%}",
            f"{100 * gain.difference:+.1f}",
            f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}",
        )
    all_read = card.readings[-1]
    table.caption = (
        f"{card.problems:,} problems, {card.samples} solutions each: the majority is right in {card.vote:.1%}, some "
        f"solution in {card.pool:.1%}. Tokens a problem: {card.solution_tokens:,.0f} of solutions; where all that "
        f"differ are read, {all_read.written_tokens:,.0f} of readers behind {all_read.prompt_tokens:,.0f} of prompts"
    )
    table.caption_justify = "left"
    return table
