"""One JSON text read as Spark reads it: token by token, and on from where an error left off.

Spark keeps the fields that it read before and behind a value that does not fit, so what a broken
text means depends on where its parser stands after an error. The cursor here stands there too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.expressions.printing import text_of_doubles
from penstock.expressions.types import INTEGER_BITS, DataType, Field

NESTING_MAX = 1_000  # these bounds are those of Spark's parser
NUMBER_CHARACTERS_MAX = 1_000
NAME_CHARACTERS_MAX = 50_000

_EXPONENT_MAX = 10_000  # no decimal of 38 digits reaches so far
_START_OBJECT, _END_OBJECT, _START_ARRAY, _END_ARRAY = "{", "}", "[", "]"
_NAME, _STRING, _INT, _FLOAT = "name", "string", "int", "float"
_TRUE, _FALSE, _NULL = "true", "false", "null"
_WHITE = " \n\r\t"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DIGITS_BEHIND_ZERO = re.compile(r"-?0[0-9]")
_HALF_A_NUMBER = re.compile(r"\.|[eE][+-]?")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\",
            "'": "'"}  # fmt: skip
_PLAIN_TEXT = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_PLAIN_OR_CONTROL = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_HEX = re.compile("[0-9a-fA-F]{4}")
_PAIRS = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_WRITTEN_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"',
                  "\\": "\\\\"}  # fmt: skip
_WRITTEN_OTHERWISE = re.compile('[\x00-\x1f"\\\\\ud800-\udfff\U00010000-\U0010ffff]')
_DECIMAL_TEXT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_NOT_FINITE = {
    "NaN": float("nan"), "INF": float("inf"), "Infinity": float("inf"), "+INF": float("inf"),
    "+Infinity": float("inf"), "-INF": float("-inf"), "-Infinity": float("-inf"),
}  # fmt: skip
_NOT_FINITE_TEXTS = frozenset(_NOT_FINITE) - {"INF"}

TimeOf = Callable[[str, DataType], int | None]  # of a text; None: it is no such time


class JsonError(Exception):
    """The text is no JSON here, or a value is not of the type that is wanted."""


class _Tokens:
    """The tokens of a text, as they are asked for.

    A name is read with the begin of its value; a quoted value only when somebody asks for it, or
    for what follows it.
    """

    def __init__(self, text: str, as_hive: bool = False) -> None:
        """`as_hive`: control characters are part of strings, and no word is a number."""
        self._text = text
        self._plain = _PLAIN_OR_CONTROL if as_hive else _PLAIN_TEXT
        self._has_words = not as_hive
        self._at = 0
        self._scopes: list[list[Any]] = []  # bracket, whether a value was begun, last name
        self._upcoming: str | None = None
        self._unread = False
        self._value = ""
        self.token: str | None = None

    @property
    def name(self) -> str | None:
        """The name that the current token belongs to, None where it stands in no object."""
        scopes = self._scopes
        if self.token in (_START_OBJECT, _START_ARRAY):
            scopes = scopes[:-1]
        return scopes[-1][2] if scopes else None

    @property
    def text(self) -> str:
        """The text of the current string or number."""
        if self._unread:
            self._read_string('"')
        return self._value

    def next(self) -> str | None:
        if self.token == _NAME:
            self.token, self._upcoming = self._upcoming, None
            self._open(self.token)
            return self.token
        if self._unread:
            self._read_string('"')
        char = self._skip_white()
        if char is None:
            if self._scopes:
                raise JsonError("it ends too early")
            self.token = None
            return None
        if char in "]}":
            if not self._scopes or self._scopes[-1][0] != ("[" if char == "]" else "{"):
                raise JsonError("the wrong bracket")
            self._scopes.pop()
            self.token = char
            return char
        if self._scopes:
            if self._scopes[-1][1]:
                if char != ",":
                    raise JsonError("a comma was expected")
                char = self._must_follow()
            self._scopes[-1][1] = True
        if self._scopes and self._scopes[-1][0] == "{":
            self._scopes[-1][2] = self._read_name(char)
            self.token = _NAME
            if self._must_follow() != ":":
                raise JsonError("a colon was expected")
            self._upcoming = self._value_token(self._must_follow())
            return self.token
        token = self._value_token(char)
        self._open(token)
        self.token = token
        return token

    def skip_children(self) -> None:
        """Go to the end of the array or object that begins here, if one does."""
        if self.token not in (_START_OBJECT, _START_ARRAY):
            return
        depth = 1
        while depth:
            token = self.next()
            if token in (_START_OBJECT, _START_ARRAY):
                depth += 1
            elif token in (_END_OBJECT, _END_ARRAY):
                depth -= 1
            elif token is None:
                if self._scopes and self._at >= len(self._text):
                    raise JsonError("it ends too early")
                return

    def _open(self, token: str | None) -> None:
        if token in (_START_OBJECT, _START_ARRAY):
            self._scopes.append([token, False, None])
            if len(self._scopes) > NESTING_MAX:
                raise JsonError("nested too deep")

    def _skip_white(self) -> str | None:
        text, at = self._text, self._at
        while at < len(text) and text[at] in _WHITE:
            at += 1
        self._at = at + 1
        return text[at] if at < len(text) else None

    def _must_follow(self) -> str:
        char = self._skip_white()
        if char is None:
            raise JsonError("it ends too early")
        return char

    def _read_name(self, char: str) -> str:
        if char not in _PLAIN_TEXT:
            raise JsonError("a name was expected")
        self._read_string(char)
        if len(self._value) > NAME_CHARACTERS_MAX:
            raise JsonError("too long a name")
        return self._value

    def _value_token(self, char: str) -> str:
        if char == '"':
            self._unread = True
            return _STRING
        if char in "{[":
            return char
        if char in "-0123456789":
            return self._number(char)
        if char == "'":
            self._read_string("'")
            return _STRING
        if char == "t":
            return self._word("true", 1, _TRUE)
        if char == "f":
            return self._word("false", 1, _FALSE)
        if char == "n":
            return self._word("null", 1, _NULL)
        if char == "N" and self._has_words:
            return self._word("NaN", 1, _FLOAT)
        if char == "I" and self._has_words:
            return self._word("Infinity", 1, _FLOAT)
        if char == "+":
            return self._signed_word("+")
        if _starts_word(char):
            self._skip_word()
        raise JsonError("a value was expected")

    def _number(self, char: str) -> str:
        begin = self._at - 1
        match = _NUMBER.match(self._text, begin)
        if match is None:
            return self._signed_word("-")
        if _DIGITS_BEHIND_ZERO.match(self._text, begin):
            raise JsonError("a zero before a number")
        fraction, exponent = match.groups()
        self._at, self._value = match.end(), match.group()
        half = _HALF_A_NUMBER.match(self._text, self._at) if exponent is None else None
        if half is not None and (fraction is None or half.group() != "."):
            # Behind the digits before the point; of numbers below one, behind what is wrong.
            whole = match.end() if fraction is None else match.start(1)
            below_one = self._text[begin:whole] in ("0", "-0")
            self._at = half.end() + 1 if below_one else whole + 1
            raise JsonError("half a number")
        size = match.end() - begin - (char == "-")
        size -= (fraction is not None) + (exponent is not None)
        if size > NUMBER_CHARACTERS_MAX:
            raise JsonError("too long a number")
        following = self._text[self._at : self._at + 1]
        if not self._scopes and following and following not in _WHITE:
            raise JsonError("a space was expected")
        return _INT if fraction is None and exponent is None else _FLOAT

    def _signed_word(self, sign: str) -> str:
        following = self._text[self._at : self._at + 2]
        if not self._has_words:
            raise JsonError("a number was expected")
        if following == "IN":
            return self._word(f"{sign}INF", 1, _FLOAT)
        if following == "In":
            return self._word(f"{sign}Infinity", 1, _FLOAT)
        self._at += min(len(following), 2 if following[:1] == "I" else 1)
        raise JsonError("a number was expected")

    def _word(self, word: str, matched: int, token: str) -> str:
        text = self._text
        while matched < len(word):
            if text[self._at : self._at + 1] != word[matched]:
                self._skip_word()
                raise JsonError("no known word")
            self._at += 1
            matched += 1
        if self._at < len(text) and _in_word(text[self._at]):
            self._skip_word()
            raise JsonError("no known word")
        self._value = word
        return token

    def _skip_word(self) -> None:
        while self._at < len(self._text) and _in_word(self._text[self._at]):
            self._at += 1

    def _read_string(self, quote: str) -> None:
        self._unread = False
        text, parts, has_codes = self._text, [], False
        while True:
            match = self._plain[quote].match(text, self._at)
            assert match is not None, "it may be empty"
            parts.append(match.group())
            self._at = match.end() + 1
            char = text[match.end() : self._at]
            if char == quote:
                break
            if char != "\\":
                raise JsonError("a string is not closed")
            escape = text[self._at : self._at + 1]
            self._at += 1
            if escape == "u":
                digits = _HEX.match(text, self._at)
                if digits is None:
                    self._at += _digits_until(text, self._at)
                    raise JsonError("no code of a character")
                parts.append(chr(int(digits.group(), 16)))
                self._at, has_codes = self._at + 4, True
            elif escape in _ESCAPES:
                parts.append(_ESCAPES[escape])
            else:
                raise JsonError("an unknown escape")
        found = "".join(parts)
        self._value = _PAIRS.sub(_joined_pair, found) if has_codes else found


def _digits_until(text: str, at: int) -> int:
    """How far a parser goes into what should be four digits."""
    found = 0
    while found < 4 and text[at + found : at + found + 1] in tuple("0123456789abcdefABCDEF"):
        found += 1
    return found + 1


def _joined_pair(match: re.Match[str]) -> str:
    return match.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _starts_word(char: str) -> bool:
    return char.isalpha() or char in "_$"


def _in_word(char: str) -> bool:
    return char.isalnum() or char in "_$"


# --- values ---------------------------------------------------------------------------------------


def read_json(text: str, wanted: DataType, time_of: TimeOf) -> Any:
    """The value of a text, times as what they count; None where it is none at all.

    A struct is a tuple, None at the fields that are missing or do not fit. Strings may hold single
    surrogates.
    """
    tokens = _Tokens(text)
    reader = _Reader(tokens, time_of)
    nothing = (None,) * len(wanted.fields) if wanted.kind == "struct" else None
    try:
        if tokens.next() is None:
            return None
        found = reader.root(wanted)
    except JsonError:
        return nothing
    return nothing if found is None else found


Step = str | int  # of a path: the name of a member, or the index of an item


def value_at(text: str, path: Sequence[Step]) -> str | None:
    """What stands at a path, a string as it is and everything else as JSON; None: nothing does.

    Of members of one name the first counts that has it.
    """
    tokens = _Tokens(text, as_hive=True)
    try:
        return None if tokens.next() is None else _followed(tokens, path)
    except JsonError:
        return None


def _followed(tokens: _Tokens, path: Sequence[Step]) -> str | None:
    """The value at the path from the current token on; the cursor is at its end afterwards."""
    if not path:
        return _whole(_Reader(tokens).text(str(tokens.token)))
    step, rest = path[0], path[1:]
    by_name = isinstance(step, str)
    if tokens.token != (_START_OBJECT if by_name else _START_ARRAY):
        tokens.skip_children()
        return None
    found: str | None = None
    place = -1
    while tokens.next() not in (_END_OBJECT, _END_ARRAY):
        place += 1
        wanted = found is None and (tokens.name if by_name else place) == step
        if by_name:
            tokens.next()
        if wanted and not (by_name and tokens.token == _NULL):
            found = _followed(tokens, rest)
        else:
            tokens.skip_children()
    return found


def members_of(text: str, names: Set[str]) -> dict[str, str]:
    """The members of an object that have these names, written as `value_at` does.

    The last one of a name counts that is not null.
    """
    tokens = _Tokens(text, as_hive=True)
    found: dict[str, str] = {}
    try:
        if tokens.next() != _START_OBJECT:
            return {}
        while tokens.next() != _END_OBJECT:
            name = tokens.name
            if tokens.next() != _NULL and name is not None and name in names:
                found[name] = _whole(_Reader(tokens).text(str(tokens.token)))
            else:
                tokens.skip_children()
    except JsonError:
        return {}
    return found


def _whole(text: str) -> str:
    """A text that bytes can hold: Spark writes no single surrogates."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise JsonError("half a character") from error
    return text


class _Reader:
    """Turns the tokens of one text into values."""

    def __init__(self, tokens: _Tokens, time_of: TimeOf = lambda text, wanted: None) -> None:
        self._tokens = tokens
        self._time_of = time_of

    def root(self, wanted: DataType) -> Any:
        element = wanted.element
        if self._tokens.token == _START_OBJECT and element is not None and element.kind == "struct":
            return [self._struct(element.fields)]
        return self._value(wanted)

    def _value(self, wanted: DataType) -> Any:
        tokens = self._tokens
        while tokens.token == _NAME:
            tokens.next()
        token = tokens.token
        if token is None or token == _NULL:
            return None
        if wanted.kind == "struct" and token == _START_OBJECT:
            return self._struct(wanted.fields)
        if wanted.kind == "array" and token == _START_ARRAY:
            return self._array(wanted)
        if wanted.kind == "map" and token == _START_OBJECT:
            return self._map(wanted)
        if wanted.kind == "string":
            return self.text(token)
        return self._number_or_time(token, wanted)

    def _goes_on(self, until: str) -> bool:
        token = self._tokens.next()
        return token is not None and token != until

    def _struct(self, fields: tuple[Field, ...]) -> tuple[Any, ...]:
        tokens = self._tokens
        places = {field.name: place for place, field in enumerate(fields)}
        found: list[Any] = [None] * len(fields)
        while self._goes_on(_END_OBJECT):
            place = places.get(tokens.name or "") if tokens.name is not None else None
            if place is None:
                tokens.skip_children()
                continue
            try:
                found[place] = self._value(fields[place].type)
            except JsonError:
                tokens.skip_children()
        return tuple(found)

    def _array(self, wanted: DataType) -> list[Any]:
        assert wanted.element is not None
        found = []
        while self._goes_on(_END_ARRAY):
            found.append(self._value(wanted.element))
        return found

    def _map(self, wanted: DataType) -> list[tuple[str, Any]]:
        assert wanted.value is not None
        found: list[tuple[str, Any]] = []
        error: JsonError | None = None
        while self._goes_on(_END_OBJECT):
            name = self._tokens.name
            try:
                found.append((name or "", self._value(wanted.value)))
            except JsonError as caught:
                error = error or caught
                self._tokens.skip_children()
        if error is not None:
            raise error
        return found

    def text(self, token: str) -> str:
        """The current value: a string as it is, everything else as JSON."""
        if token == _STRING:
            return self._tokens.text
        if token in (_END_OBJECT, _END_ARRAY):
            raise JsonError("no value")
        parts: list[str] = []
        self._copy(token, parts)
        return "".join(parts)

    def _copy(self, token: str | None, parts: list[str]) -> None:
        """Write an array or object, or a value that is no string, as Spark's generator does."""
        tokens, depth = self._tokens, 0
        while True:
            if token in (_END_OBJECT, _END_ARRAY):
                depth -= 1
                parts.append(str(token))
            else:
                if parts and parts[-1] not in ("{", "[", ":"):
                    parts.append(",")
                if token in (_START_OBJECT, _START_ARRAY):
                    depth += 1
                    parts.append(str(token))
                elif token == _NAME:
                    parts += [_quoted(tokens.name or ""), ":"]
                else:
                    parts.append(_written(str(token), tokens))
            if depth == 0:
                return
            token = tokens.next()
            if token is None:
                return

    def _number_or_time(self, token: str, wanted: DataType) -> Any:
        text = self._tokens.text if token in (_STRING, _INT, _FLOAT) else ""
        if wanted.is_integer and token == _INT:
            return _integer(text, INTEGER_BITS[wanted.kind])
        if wanted.kind == "boolean" and token in (_TRUE, _FALSE):
            return token == _TRUE
        if wanted.is_fractional and token in (_INT, _FLOAT):
            return _fractional(str(int(text)) if token == _INT else text, wanted)
        if wanted.is_fractional and token == _STRING and text in _NOT_FINITE_TEXTS:
            return _NOT_FINITE[text]
        if wanted.is_decimal and token in (_STRING, _INT, _FLOAT):
            return _decimal(text.replace(",", "") if token == _STRING else text, wanted)
        if wanted.kind == "timestamp" and token == _INT:
            micros = _integer(text, 64) * 1_000_000
            return (micros + (1 << 63)) % (1 << 64) - (1 << 63)
        if wanted.kind in ("date", "timestamp", "timestamp_ntz") and token == _STRING and text:
            found = self._time_of(text, wanted)
            if found is not None:
                return found
        raise JsonError("not of the type that is wanted")


def _integer(text: str, bits: int) -> int:
    value = int(text)
    # Bytes are taken as far as they would be without a sign.
    top = (1 << bits) if bits == 8 else 1 << (bits - 1)
    if not -(1 << (bits - 1)) <= value < top:
        raise JsonError("too large an integer")
    return value - 256 if bits == 8 and value > 127 else value


def _fractional(text: str, wanted: DataType) -> float:
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    if wanted.kind == "double":
        return float(text)
    try:
        return float(pa.scalar(text).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        with np.errstate(over="ignore"):
            return float(np.float32(float(text)))


def _decimal(text: str, wanted: DataType) -> Decimal:
    if not _DECIMAL_TEXT.fullmatch(text):
        raise JsonError("not a decimal")
    try:
        value = Decimal(text)
        if value and value.adjusted() > _EXPONENT_MAX:
            raise JsonError("too large a decimal")
        if value and value.adjusted() < -_EXPONENT_MAX:
            value = Decimal(0)
        context = Context(prec=len(text) + 2 * _EXPONENT_MAX)
        found = value.quantize(Decimal(1).scaleb(-wanted.scale), ROUND_HALF_UP, context)
    except InvalidOperation as error:
        raise JsonError("not a decimal") from error
    if abs(found) >= Decimal(10) ** (wanted.precision - wanted.scale):
        raise JsonError("too large a decimal")
    return found


def _written(token: str, tokens: _Tokens) -> str:
    if token == _STRING:
        return _quoted(tokens.text)
    if token == _INT:
        return str(int(tokens.text))
    if token != _FLOAT:
        return token
    value = _NOT_FINITE.get(tokens.text)
    value = float(tokens.text) if value is None else value
    text = str(text_of_doubles(np.array([value]), np.ones(1, np.bool_))[0].as_py())
    return text if np.isfinite(value) else f'"{text}"'


def _quoted(text: str) -> str:
    return f'"{_WRITTEN_OTHERWISE.sub(_escaped, text)}"'


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    if char in _WRITTEN_SHORT:
        return _WRITTEN_SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
