"""Plain values into attrs classes: what is accepted, and what each mistake says."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pytest
from attrs.validators import and_, deep_iterable, ge, in_, instance_of, le, max_len, optional
from hypothesis import given
from hypothesis import strategies as st

from forge_host.errors import UsageError
from forge_host.plugins.coerce import FieldError, coerce
from forge_host.plugins.fields import describe, field_types
from forge_host.plugins.structure import structure
from forge_host.types import Use, field

if TYPE_CHECKING:
    from torch import Tensor


@pytest.mark.parametrize("tp", [float, float | None, int | float])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
def test_numbers_are_finite(tp, value) -> None:
    with pytest.raises(FieldError, match="`rate` must be a finite number"):
        coerce(value, tp, ("rate",))


@pytest.mark.parametrize("value", ["1e999", 10**400])
def test_a_number_too_large_is_not_finite(value) -> None:
    with pytest.raises(FieldError, match="`rate` must be a finite number"):
        coerce(value, float, ("rate",))


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Inner:
    size: int = field(default=1, help="inner size", validator=ge(1))
    name: str = "n"


def _seconds(text: str | float) -> float:
    return float(str(text).removesuffix("s"))


@attrs.frozen(kw_only=True)
class Config:
    count: int = field(default=1, help="how many", unit="rows", validator=and_(ge(1), le(8)))
    rate: float = 0.5
    flag: bool = False
    text: str = "x"
    maybe: int | None = None
    mode: Literal["fast", "slow", 3] = "fast"
    kind: str = field(default="one", help="which", validator=in_(("one", "two")))
    names: tuple[str, ...] = field(default=(), help="names", converter=tuple)
    pair: tuple[str, float] = ("a", 1.0)
    numbers: list[float] = attrs.field(factory=list)
    seen: set[int] = attrs.field(factory=set)
    items: Sequence[int] = ()
    table: Mapping[str, int] = attrs.field(factory=dict)
    inner: Inner = attrs.field(factory=Inner)
    inners: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = attrs.field(factory=dict)
    either: int | str = 0
    inner_or_none: Inner | None = None
    folder: Path = Path("/tmp")
    colour: Colour = Colour.RED
    use: Use | None = None
    delay: float = attrs.field(default=1.0, converter=_seconds)
    _private: int = 0
    anything: Any = None
    unchecked: Tensor | None = None
    short: str = attrs.field(default="", validator=max_len(3))
    digits: tuple[int, ...] = attrs.field(default=(), validator=deep_iterable(instance_of(int)))
    limit: int | None = attrs.field(default=None, validator=optional(ge(5)))
    computed: int = attrs.field(init=False, default=7)


def of(**values):
    return structure(Config, values, "section")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": 2}, 2.0), ({"rate": "1e-6"}, 1e-6), ({"rate": "-.5E+3"}, -500.0), ({"maybe": None}, None),
        ({"maybe": 3}, 3), ({"mode": 3}, 3), ({"names": ["a", "b"]}, ("a", "b")), ({"pair": ["b", 2]}, ("b", 2.0)),
        ({"numbers": (1, "2e0")}, [1.0, 2.0]), ({"seen": [1, 1]}, {1}), ({"items": [1]}, (1,)),
        ({"table": {"a": 1}}, {"a": 1}),
        ({"inner": {"size": 4}}, Inner(4)), ({"inner": None}, Inner()), ({"inner": Inner(5)}, Inner(5)),
        ({"inners": [{"size": 2}, {}]}, (Inner(2), Inner())), ({"by_name": {"x": {"size": 3}}}, {"x": Inner(3)}),
        ({"either": "3"}, "3"), ({"either": 3}, 3), ({"inner_or_none": {"size": 2}}, Inner(2)),
        ({"inner_or_none": None}, None),
        ({"folder": "/a"}, Path("/a")), ({"colour": "red"}, Colour.RED), ({"use": "math"}, Use("math")),
        ({"use": {"use": "math", "scale": 2}}, Use("math", {"scale": 2})), ({"delay": "3s"}, 3.0),
        ({"anything": [1]}, [1]), ({"unchecked": [1]}, [1]), ({"limit": 5}, 5),
    ],
)  # fmt: skip
def test_accepted(values, expected):
    ((key, _),) = values.items()
    got = getattr(of(**values), key)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"coutn": 1}, "section: key `coutn` is unknown; did you mean `count`?"),
        ({"computed": 1}, "section: key `computed` is unknown"),
        ({"_private": 1}, "section: key `_private` is unknown; did you mean `private`?"),
        ({"count": True}, "section: `count` must be int, got true"),
        ({"count": 1.0}, "section: `count` must be int, got 1.0"),
        ({"count": "4"}, "section: `count` must be int, got '4'"),
        ({"count": None}, "section: `count` must be int, got null"),
        ({"count": 0}, "section: `count` must be >= 1, got 0"),
        ({"count": 9}, "section: `count` must be <= 8, got 9"),
        ({"rate": "fast"}, "section: `rate` must be float, got 'fast'"),
        ({"rate": True}, "section: `rate` must be float, got true"),
        ({"flag": 1}, "section: `flag` must be bool, got 1"),
        ({"flag": "true"}, "section: `flag` must be bool, got 'true'"),
        ({"text": 5}, 'section: `text` must be str, got 5; put quotes around it: "5"'),
        ({"maybe": "x"}, "section: `maybe` must be int or null, got 'x'"),
        ({"mode": "fats"}, "section: `mode` must be one of 'fast', 'slow', 3, got 'fats'; did you mean `fast`?"),
        ({"mode": True}, "section: `mode` must be one of 'fast', 'slow', 3, got true"),
        ({"kind": "tow"}, "section: `kind` must be one of 'one', 'two', got 'tow'; did you mean `two`?"),
        ({"names": "abc"}, "section: `names` must be list[str], got 'abc'; write a list: [abc]"),
        ({"names": ["a", 1]}, 'section: `names[1]` must be str, got 1; put quotes around it: "1"'),
        ({"pair": ["b"]}, "section: `pair` must be [str, float], got ['b']; give 2 values"),
        ({"table": [1]}, "section: `table` must be mapping[str, int], got [1]"),
        ({"table": {"a": "x"}}, "section: `table.a` must be int, got 'x'"),
        ({"inner": 3}, "section: `inner` must be a section of keys, got 3"),
        ({"inner": {"siz": 3}}, "section: key `inner.siz` is unknown; did you mean `size`?"),
        ({"inner": {"size": 0}}, "section: `inner.size` must be >= 1, got 0"),
        ({"inners": [{}, {"size": "x"}]}, "section: `inners[1].size` must be int, got 'x'"),
        ({"inner_or_none": {"size": "x"}}, "section: `inner_or_none.size` must be int, got 'x'"),
        ({"either": 1.5}, "section: `either` must be int or str, got 1.5"),
        ({"colour": "blue"}, "section: `colour` must be one of 'red', got 'blue'"),
        ({"use": 3}, "section: `use` must be a component's name, or keys with `use`, got 3"),
        ({"delay": "x"}, "section: could not convert string to float: 'x'"),
        ({"short": "abcd"}, "section: Length of 'short' must be <= 3: 4"),
        ({"limit": 4}, "section: `limit` must be >= 5, got 4"),
    ],
)
def test_refused(values, message):
    with pytest.raises(FieldError) as error:
        of(**values)
    assert str(error.value).startswith(message)
    assert isinstance(error.value, UsageError) and error.value.exit_code == 2


def test_path_leads_to_the_key():
    with pytest.raises(FieldError) as error:
        of(inners=[{}, {"size": "x"}])
    assert error.value.path == ("inners", "1", "size")
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_required_and_whole_mapping():
    @attrs.frozen
    class Needs:
        path: str = field(help="where the data is")

    with pytest.raises(UsageError, match="dataset: key `path` is required; it is: where the data is"):
        structure(Needs, {}, "dataset")
    with pytest.raises(UsageError, match=r"dataset: expected keys with values, got \['path'\]"):
        structure(Needs, ["path"], "dataset")  # type: ignore[arg-type]


def test_a_class_may_refuse_combinations_in_its_own_words():
    @attrs.frozen
    class Range:
        low: int = 0
        high: int = 0

        def __attrs_post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high.")

    with pytest.raises(UsageError, match="^x: low is above high$"):
        structure(Range, {"low": 1}, "x")


@given(
    st.builds(
        Config,
        count=st.integers(1, 8),
        rate=st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
        flag=st.booleans(),
        text=st.text(),
        maybe=st.none() | st.integers(),
        names=st.lists(st.text()),
        inner=st.builds(Inner, size=st.integers(1, 9), name=st.text()),
        by_name=st.dictionaries(st.text(), st.builds(Inner, size=st.integers(1, 9))),
        inner_or_none=st.none() | st.builds(Inner),
    )
)
def test_round_trip_through_plain_data(config):
    keys = ("count", "rate", "flag", "text", "maybe", "names", "inner", "by_name", "inner_or_none")
    plain = {key: value for key, value in attrs.asdict(config).items() if key in keys}
    assert of(**plain) == config


def test_types_of_string_annotations():
    types = field_types(Config)
    assert types["maybe"] == int | None
    assert types["unchecked"] is Any  # exists for the type checker only
    assert list(types) == [attribute.name for attribute in attrs.fields(Config)]


def test_describe():
    rows = {row.name: row for row in describe(Config)}
    row = rows["count"]
    assert (row.type, row.default, row.bounds, row.unit, row.help) == ("int", "1", ">= 1, <= 8", "rows", "how many")
    assert rows["kind"].bounds == "one of: one, two"
    assert rows["inner"].type == "Inner" and rows["maybe"].default == "null" and rows["flag"].default == "false"
    assert rows["limit"].bounds == ">= 5" and "computed" not in rows and "private" in rows
