"""Dates: a literal of the filter language, and the same reading of text in SQL.

    2020    2020-03    2020-03-01    2020-03-01T09:30[:05[.25]][Z or +09:00]

A part of ISO 8601: a space may stand for the T, a time without a zone is UTC, zones reach from
-14:59 to +14:59, years from 0001 to 9999. The value is a number of microseconds since 1970 in
UTC, an exact integer; further decimals are cut off.
"""

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import date

_FORM = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
    r"(?:Z|([+-])(\d\d):(\d\d))?)?)?)?",
    re.ASCII,
)
_SECOND = 1_000_000  # in microseconds
_DAY = 24 * 60 * 60 * _SECOND
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Date:
    """The period that a date literal names: its first and last microsecond, inclusive.

    `date('2020-03')` is all of March 2020 in UTC, `date('2020-03-01T09:30')` that minute.
    """

    text: str
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Date":
        """Read a literal. Raises ValueError with the reason if it is not a date."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError("expected a date such as 2020, 2020-03-01 or 2020-03-01T09:30:00Z")
        year, month, day, hour, minute, second = (int(g) if g else None for g in match.groups()[:6])
        assert year is not None  # the pattern has it
        if year == 0:
            raise ValueError("years begin with 0001")
        if month is not None and not 1 <= month <= 12:
            raise ValueError("months go from 01 to 12")
        length = monthrange(year, month or 1)[1]
        if day is not None and not 1 <= day <= length:
            raise ValueError(f"that month has {length} days")
        if (hour or 0) > 23 or (minute or 0) > 59 or (second or 0) > 59:
            raise ValueError("the time of day goes from 00:00:00 to 23:59:59")
        first = _microseconds(year, month or 1, day or 1)
        first += ((hour or 0) * 3600 + (minute or 0) * 60 + (second or 0)) * _SECOND
        first += int(f"{match[7] or '':0<6.6}") - _offset(*match.group(8, 9, 10))
        if month is None:
            span = _microseconds(year, 12, 31) + _DAY - first
        elif hour is None:
            span = length * _DAY if day is None else _DAY
        else:
            span = 60 * _SECOND if second is None else 1 if match[7] else _SECOND
        return cls(text, first, first + span - 1)


def _microseconds(year: int, month: int, day: int) -> int:
    return (date(year, month, day).toordinal() - _EPOCH) * _DAY


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int:
    """A zone in microseconds east of Greenwich."""
    if sign is None or hours is None or minutes is None:
        return 0
    if int(hours) > 14 or int(minutes) > 59:
        raise ValueError("zones go from -14:59 to +14:59")
    return int(f"{sign}1") * (int(hours) * 3600 + int(minutes) * 60) * _SECOND


def _digits(pattern: str) -> str:
    return pattern.replace("9", "[0-9]")


def moment_sql(value: str) -> str:
    """An SQL expression: the first microsecond of a date in a text, null if it is not a date.

    SQLite's date functions alone accept much more: `now`, `12:00`, a number of days, and 2020-02-31
    as the second of March. So they get only texts of this form. `value` is SQL and must be text or
    null.
    """
    # LIMIT keeps SQLite from merging the steps, which would compute everything ten times.
    whole = (
        "SELECT v || CASE length(v) WHEN 4 THEN '-01-01' WHEN 7 THEN '-01' ELSE '' END AS v "
        f"FROM (SELECT {value} AS v) LIMIT 1"
    )
    parts = (
        "SELECT substr(v, 1, 10) AS day, substr(v, 11) AS rest, "
        "CASE WHEN substr(v, -1) = 'Z' THEN 1 "
        f"WHEN substr(v, -6) GLOB '{_digits('[+-]99:99')}' THEN 6 ELSE 0 END AS zone "
        f"FROM ({whole}) "
        f"WHERE v GLOB '{_digits('9999-99-99*')}' AND v >= '0001' LIMIT 1"
    )
    times = (
        "SELECT day, substr(rest, 1, length(rest) - zone) AS time, "
        f"substr(rest, length(rest) - zone + 1) AS zone FROM ({parts}) "
        "WHERE date(day, '+0 days') = day LIMIT 1"
    )
    return (
        f"(SELECT {_SECOND} * strftime('%s', CASE time WHEN '' THEN day "
        "ELSE day || substr(time || ':00', 1, 9) || zone END) "
        f"+ substr(substr(time, 11) || '000000', 1, 6) FROM ({times}) "
        f"WHERE substr(time, 2, 2) < '24' AND (time = '' AND zone = '' "
        f"OR time GLOB '{_digits('[T ]99:99')}' OR time GLOB '{_digits('[T ]99:99:99')}' OR "
        f"time GLOB '{_digits('[T ]99:99:99.9*')}' AND substr(time, 11) NOT GLOB '*[^0-9]*'))"
    )
