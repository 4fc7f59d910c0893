"""YAML reading and writing: lines, refusals, numbers, round trip."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_host.config.files import dump, load_file, load_text, parse_value
from forge_host.config.source import walk
from forge_host.errors import UsageError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    # Libraries that tests before this one loaded may have switched subnormal numbers off in this process.
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    | st.text(max_size=20)
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def test_every_leaf_knows_its_line():
    text = "a: 1\nb:\n  c: 2\n  d: [x,\n    y]\n"
    lines = {key: item.source.where for key, item in walk(load_text(text, "f.yaml"))}
    assert lines == {"a": "f.yaml:1", "b.c": "f.yaml:3", "b.d.0": "f.yaml:4", "b.d.1": "f.yaml:5"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("4E5", 4e5),
        ("-1.5e3", -1500.0),
        ("'1e-6'", "1e-6"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", False),
        ("~", None),
        ("", None),
        ("0x10", 16),
        ("1_000", 1000),
        ("e5", "e5"),
        ("1e", "1e"),
        ("=", "="),
    ],
)
def test_scalars(text, value):
    got = load_text(f"k: {text}", "f.yaml").plain["k"]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: key `a` stands twice"),
        ("x:\n  a: 1\n  a: 1\n", "f.yaml:3: key `a` stands twice"),
        (
            "a: !!python/object/apply:os.system ['true']\n",
            "f.yaml:1: YAML tag .*python/object/apply:os.system is not allowed",
        ),
        ("a: !!python/name:os.system\n", "f.yaml:1: YAML tag .* is not allowed"),
        ("a: !mine 3\n", "f.yaml:1: YAML tag !mine is not allowed"),
        ("a: [1\nb: 2\n", "f.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 2\n", r"f.yaml:\d: not valid YAML"),
        ("- a\n- b\n", "a configuration is a mapping"),
        ("just text", "a configuration is a mapping"),
        ("? [a, b]\n: 1\n", "f.yaml:1: a key is a single word"),
        ("a: &x [*x]\n", "f.yaml:1: .*(alias|found undefined)"),
    ],
)
def test_refused(text, message):
    with pytest.raises(UsageError, match=message):
        load_text(text, "f.yaml")


def test_an_alias_bomb_is_refused():
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(UsageError, match="aliases expand to too many values"):
        load_text("\n".join(["a0: &a0 x", *levels]), "f.yaml")


def test_aliases_and_merge_keys():
    text = "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nboth: {<<: [*b, {x: 9, z: 4}]}\n"
    assert load_text(text, "f").plain == {
        "base": {"x": 1, "y": 2},
        "more": {"x": 1, "y": 3},
        "both": {"x": 1, "y": 2, "z": 4},
    }


def test_empty_and_comment_only_documents_are_empty():
    assert load_text("", "f").plain == load_text("# nothing\n", "f").plain == load_text("---\n", "f").plain == {}


def test_missing_folder_and_binary_files(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        load_file(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match="is a folder"):
        load_file(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_file(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("1e-6", 1e-6),
        ("true", True),
        ("null", None),
        ("", ""),
        ("a: b", "a: b"),
        ("x=y", "x=y"),
        ("[1, a]", [1, "a"]),
        ("{use: math, weight: 2}", {"use": "math", "weight": 2}),
        ("'7'", "7"),
        ("./r.py:R", "./r.py:R"),
        ("# no comment", "# no comment"),
        ("You are: a calculator.", "You are: a calculator."),
        ("-1", -1),
        ("*a", "*a"),
    ],
)
def test_command_line_values(text, value):
    assert parse_value(text) == value


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "<<"), DATA, max_size=5))
def test_what_is_written_reads_back(data):
    def has_merge(value):
        if isinstance(value, dict):
            return "<<" in value or any(map(has_merge, value.values()))
        return isinstance(value, list) and any(map(has_merge, value))

    if not has_merge(data):
        assert load_text(dump(data), "f").plain == data


@pytest.mark.parametrize(
    "text", ["1e-6", "1e5", "no", "null", "2024-01-01", "1:30", "0x1f", "~", "", " x ", "a\nb\n", "# c"]
)
def test_strings_that_look_like_something_else_stay_strings(text):
    assert load_text(dump({"k": text}), "f").plain == {"k": text}
