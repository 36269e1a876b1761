"""Numbers of JSON, which has one kind of them."""


def json_number(text: str) -> int | float:
    """The value of a number with a point or an exponent, for ``parse_float`` of `json.loads`: ``64.0`` is the integer
    64. Beyond 53 bits a float says no particular integer, and stays one."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
