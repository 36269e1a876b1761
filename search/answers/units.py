"""Units after a number.

Units are names, not factors: ``100 cm`` is not ``1 m``, and ``3 feet`` not ``3 inches``. Words that are no unit of the
table count things (``3 apples``), and carry no meaning of their own.
"""

import re
from functools import lru_cache

_UNITS = """
meter: m metre | kilometer: km Km kilometre | centimeter: cm centimetre | millimeter: mm millimetre
decimeter: dm decimetre | micrometer: um | nanometer: nm
inch: in inches | foot: ft feet | yard: yd | mile: mi | acre: | hectare: ha
liter: L l litre | milliliter: ml mL millilitre | gallon: gal | quart: qt | pint: pt | cup: | tablespoon: tbsp
teaspoon: tsp
gram: g gm gramme | kilogram: kg Kg kgs kilo kilogramme | milligram: mg | ton: | tonne: | ounce: oz | pound:
pound mass: lb lbs
second: s sec | millisecond: ms | minute: min | hour: h hr hrs | day: | week: wk wks | month: | year: yr yrs | decade:
century: centuries
degree: deg ° | degree celsius: °C celsius | degree fahrenheit: °F fahrenheit | radian: rad | kelvin:
newton: N | joule: J | kilojoule: kJ | watt: W | kilowatt: kW | kilowatthour: kWh | volt: V | ampere: amp | ohm: Ω
hertz: Hz | kilohertz: kHz | megahertz: MHz | pascal: Pa | kilopascal: kPa | calorie: cal | kilocalorie: kcal
mole: mol | bit: | byte: | megabyte: MB | gigabyte: GB | percent: % pct percentage
"""
_CURRENCIES = """
dollar: ¤ buck | dollar US: USD US¤ US | dollar Canada: CAD C¤ CA¤ | dollar Australia: AUD A¤ AU¤ | cent: ¢
dollar Hong Kong: HKD HK¤ | dollar Singapore: SGD S¤ | dollar New Zealand: NZD NZ¤ | euro: € EUR
pound sterling: £ GBP sterling | pence: penny pennies | ¥: | ¥ yen: yen JPY | ¥ yuan: yuan CNY RMB 元
rupee: ₹ Rs rs INR | ruble: ₽ RUB | won: ₩ KRW | peso: ₱ PHP MXN | franc: CHF | krona: SEK NOK DKK kr | zloty: PLN zł
hryvnia: ₴ UAH | tenge: ₸ KZT | cedi: ₵ GHS | taka: ৳ BDT | bitcoin: ₿ BTC
baht: ฿ THB | lira: ₺ TRY | shekel: ₪ ILS | dong: ₫ VND | naira: ₦ NGN | reais: BRL R¤ | rand: ZAR | dirham: AED
"""
"""Names, each with its other spellings; those of three letters and more have a plural. The first word of a name alone
is a vaguer unit: ``£`` is the pound sterling, which ``pounds`` may be."""
_COMPOUND = {
    "mph": "mile/hour",
    "kph": "km/h",
    "kmh": "km/h",
    "kmph": "km/h",
    "cc": "cm^3",
    "sqft": "ft^2",
    "sqm": "m^2",
}
_POWERS_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}


def _spellings(table: str) -> dict[str, str]:
    """The name of each spelling in a table."""
    names: dict[str, str] = {}
    for entry in re.split(r"[|\n]", table.strip()):
        name, _, others = (part.strip() for part in entry.partition(":"))
        for spelling in (*(() if " " in name else (name,)), *others.split()):
            names[spelling] = name
            if len(spelling) >= 3:
                names[f"{spelling}s"] = name
    return names


_MONEY = _spellings(_CURRENCIES)
_NAMES = {**_spellings(_UNITS), **_MONEY, "unit": "", "units": ""}
_SIGNS = "|".join(sorted((spelling for spelling in _MONEY if not spelling.islower()), key=len, reverse=True))
"""The currencies that may stand before a number."""
_TOKEN = re.compile(
    r"(?P<word>°\s?[CF](?![A-Za-z])|[A-Z]{1,2}¤|[A-Za-z]+|[^\x00-\x7f]|%)"
    r"|(?:\^\s*\{?\s*|(?<=[A-Za-z]))(?P<power>-?\d)\s*\}?"
    r"|(?P<per>/)"
    r"|\\cdot|[.\s]|(?<=[A-Za-z])-"
)
_CURRENCY = re.compile(rf"(?P<sign>[+-]?)\s*(?P<name>{_SIGNS})(?:(?<=s)\.)?\s*(?=[\d.\\+-])")
_COUNTED = re.compile(r"(?P<first>[^\W\d_]{1,32})(?:['-][^\W\d_]+)?(?P<others>(?:[ ,.-]{1,3}[^\W\d_]+)*)")
_NO_UNITS = re.compile(
    r"(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|mod|theta|choose|and|or|but|times|plus|minus|over|squared|cubed|base"
    r"|hundred|dozen|thousand|million|billion|trillion|if|where|when)",
    re.IGNORECASE,
)
"""Words that are no units after a number: they change its value, or are mathematics."""


def currency(text: str) -> tuple[str, str]:
    """``text`` without the currency before its number, and that currency's unit; "" if there is none."""
    prefix = _CURRENCY.match(text)
    if prefix is None:
        return text, ""
    return prefix["sign"] + text[prefix.end() :], _MONEY[prefix["name"]]


@lru_cache(maxsize=4096)
def unit_of(phrase: str) -> str | None:
    """The unit that ``phrase`` means after a number, "" if it only counts things; None if it is no unit."""
    factors, rest = _factors(phrase.strip(" .,"))
    if rest and not _counts(rest, is_alone=not factors):
        return None
    # "8 in" is a length, "8 in all" is not.
    return "" if rest and phrase.split(maxsplit=1)[0] == "in" else _name(factors)


def known_unit(phrase: str) -> str:
    """The unit that ``phrase`` is, if it is nothing else; otherwise ""."""
    factors, rest = _factors(phrase.strip(" .,"))
    return "" if rest else _name(factors)


def vaguer(unit: str) -> str:
    """The unit that may be meant by less than ``unit``; "" if there is none."""
    first, space, _ = unit.partition(" ")
    return first if space else ""


def _factors(phrase: str) -> tuple[dict[str, int], str]:
    """The powers of the units at the beginning of ``phrase``, and the words that follow."""
    factors: dict[str, int] = {}
    position, power = 0, 1
    last: str | None = None
    while token := _TOKEN.match(phrase, position):
        word, exponent, per = token.groups()
        if word in _POWERS_BEFORE:
            power *= _POWERS_BEFORE[word]
        elif last is not None and (per or word == "per"):
            power = -1
        elif last is not None and (exponent or word in _POWERS_AFTER):
            factors[last] *= int(exponent) if exponent else _POWERS_AFTER[word]
        elif word or exponent or per:
            if (known := _known(word or "")) is None:
                break
            for last, each in known.items():
                factors[last] = factors.get(last, 0) + power * each
            power = 1
        position = token.end()
    return factors, phrase[position:].strip(" .,")


def _known(word: str) -> dict[str, int] | None:
    spelling = word.replace(" ", "")
    # "M" is no "m", but "KM" is a "km".
    spelling = spelling if spelling in _NAMES or len(spelling) == 1 else spelling.lower()
    if spelling in _COMPOUND:
        return _factors(_COMPOUND[spelling])[0]
    return {_NAMES[spelling]: 1} if spelling in _NAMES else None


def _counts(words: str, is_alone: bool) -> bool:
    """Whether ``words`` are things to count: ``apples in all``, but not ``more than``; a variable is too short."""
    counted = _COUNTED.fullmatch(words)
    if counted is None or _NO_UNITS.fullmatch(counted["first"]) or "than" in counted["others"].split():
        return False
    first = counted["first"]
    return len(first) >= (3 if is_alone else 2) or first == "of" or not first.isascii()


def _name(factors: dict[str, int]) -> str:
    """Money comes first, so that it is the vaguer unit of a wage."""
    written = {
        name: power
        for name, power in factors.items()
        # "degrees celsius" are no degrees besides.
        if name and power and not any(other.startswith(f"{name} ") for other in factors)
    }
    parts = [name if power == 1 else f"{name}^{power}" for name, power in sorted(written.items())]
    money = [part for part in parts if part in _MONEY.values()]
    return " ".join([*money, *(part for part in parts if part not in money)]) if money else "·".join(parts)
