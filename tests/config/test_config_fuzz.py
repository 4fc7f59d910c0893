"""Whatever a configuration holds, resolving it either works or raises one of the host's own errors."""

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_host.config import resolve
from forge_host.config.canonical import ROLES, SECTIONS
from forge_host.config.files import dump, load_text
from forge_host.config.schema import RunConfig
from forge_host.errors import ForgeError

SCALARS = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        3,
        2.5,
        1e-6,
        "",
        "math",
        "grpo",
        "vllm",
        "auto",
        "arithmetic",
        "x/y",
        "a:b",
        "./f.py:R",
        "no.jsonl",
        "1e3",
    ]
)
INNER = sorted(
    {"use", "path", "weight", "procs", "n_samples", "beta", "speed", "low", "split", "dataset", "mode", "0", "of"}
    | {f.name for section in attrs.asdict(RunConfig(model=""), recurse=False).values() if attrs.has(type(section))
       for f in attrs.fields(type(section))}
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=3),
    max_leaves=8,
)
TOP = st.sampled_from(sorted({*SECTIONS, *ROLES, "grpo", "dapo", "nosuch"} - {"model", "run_dir"}))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(TOP, VALUES, max_size=4), st.lists(st.tuples(TOP, st.sampled_from(INNER), SCALARS), max_size=2))
def test_any_configuration_resolves_or_is_refused_in_one_sentence(host, write, data, sets):
    base = {"model": "tiny", "launcher": "here", "trackers": []}
    overrides = [f"{top}.{inner}={'' if value is None else value}" for top, inner, value in sets]
    config = write(dump({**base, **data}))
    try:
        run = resolve(config, overrides=overrides, host=host, check=False)
    except ForgeError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert resolve(write(run.to_yaml(), "again.yaml"), host=host, check=False).config == run.config
    assert load_text(run.to_yaml(), "r").plain["model"] == "tiny"
