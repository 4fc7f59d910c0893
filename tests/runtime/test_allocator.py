"""Settings of glibc's allocator are given only to a glibc that takes them."""

import os

import pytest

from forge_host.runtime.allocator import glibc, keep_memory


@pytest.mark.parametrize(
    ("said", "version", "given"),
    [
        ("glibc 2.36", (2, 36), True),
        ("glibc 2.35", (2, 35), True),
        ("glibc 2.34", (2, 34), False),
        ("", (0,), False),
        (None, (0,), False),
    ],
)
def test_only_a_new_glibc_is_told_to_keep_memory(monkeypatch, said, version, given):
    monkeypatch.setattr(os, "confstr", lambda name: said)
    assert glibc() == version
    assert bool(keep_memory()) is given


def test_another_c_library_keeps_its_own_settings(monkeypatch):
    def refuse(name):
        raise ValueError(f"unrecognized configuration name: {name}")

    monkeypatch.setattr(os, "confstr", refuse)
    assert glibc() == (0,) and keep_memory() == {}
