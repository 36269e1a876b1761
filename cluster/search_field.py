"""The ``search`` field of a request, from what is typed on a command line."""

from pydantic import ValidationError

from search.settings import STRATEGIES, parse_alias, parse_search


class SearchFieldError(ValueError):
    """There is no such strategy, or it does not take these settings."""


def search_field(strategy: str, n: int) -> dict[str, object]:
    """The field for a strategy given by name, which gets ``n`` if it takes one, or by an alias such as
    ``beam-64``, whose own number counts. Checked here, so that nothing wrong is sent a thousand times.

    Raises:
        SearchFieldError: names what is wrong and what there is.
    """
    given: dict[str, object] = parse_alias(strategy) or {"strategy": strategy}
    known = STRATEGIES.get(str(given["strategy"]))
    if known is not None and "n" in known.model_fields:
        given.setdefault("n", n)
    try:
        parse_search(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise SearchFieldError(f"{strategy}: {first['msg']}") from error
    return given
