"""Level 0: what is installed, read from metadata alone."""

from __future__ import annotations

import sys

from forge_host.plugins import discover
from forge_host.plugins.discovery import shadowed
from forge_host.testing.dists import write_dist

RAISES = "raise RuntimeError('imported at level 0')"


def found(*names):
    return [record for record in discover() if record.name in names]


def test_discovers_sorted_without_importing(install):
    for name in ("zz-last", "aa-first"):
        install(name, RAISES, version="2.1")
    records = found("zz-last", "aa-first")
    assert [record.name for record in records] == ["aa-first", "zz-last"]
    assert [str(record.origin) for record in records] == ["forge-plugin-aa-first 2.1", "forge-plugin-zz-last 2.1"]
    assert {record.state for record in records} == {"discovered"}
    assert not {"fake_zz_last", "fake_aa_first"} & sys.modules.keys()


def test_two_distributions_with_one_name_conflict_and_both_are_shown(install):
    install("twin", RAISES)
    install("twin", RAISES, dist="other-twin", module="other_twin", version="3.0")
    records = found("twin")
    assert [record.state for record in records] == ["conflict", "conflict"]
    for record in records:
        assert "forge-plugin-twin 1.0" in record.reason and "other-twin 3.0" in record.reason


def test_one_distribution_twice_on_the_path_counts_once(install, tmp_path, monkeypatch):
    install("double", RAISES, version="1.0")
    second = tmp_path / "second"
    write_dist(second, "forge_plugin.double", {"double": "fake_double"}, {}, version="0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(second)])
    (record,) = found("double")
    assert (record.state, record.origin.version) == ("discovered", "1.0")
    (places,) = (where for name, where in shadowed().items() if name == "forge-plugin-double")
    assert [place.split()[0] for place in places] == ["1.0", "0.9"]


def test_a_link_to_the_same_folder_is_no_duplicate(install, tmp_path, monkeypatch):
    install("linked", RAISES)
    (tmp_path / "lib64").symlink_to(install.root)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "lib64")])
    (record,) = found("linked")
    assert record.state == "discovered"
    assert "forge-plugin-linked" not in shadowed()


def test_entry_point_must_have_the_name_of_its_distribution(install):
    install("proper", RAISES, entry_points={"improper": "fake_proper"})
    (record,) = found("improper")
    assert record.state == "failed"
    assert "must name it `proper`" in record.reason


def test_a_third_party_name_is_free_when_well_formed(install):
    install("shortness", RAISES, dist="forge-reward-shortness")
    install("x", RAISES, dist="some-dist", entry_points={"Bad_Name": "fake_x"})
    install("y", RAISES, dist="other-dist", entry_points={"builtin": "fake_y"})
    assert found("shortness")[0].state == "discovered"
    assert "lower-case" in found("Bad_Name")[0].reason
    assert "belongs to the host" in found("builtin")[0].reason


def test_a_misnamed_distribution_does_not_put_the_right_one_in_conflict(install):
    install("real", RAISES)
    install("fake", RAISES, entry_points={"real": "fake_fake"})
    assert [(record.origin.distribution, record.state) for record in found("real")] == [
        ("forge-plugin-fake", "failed"),
        ("forge-plugin-real", "discovered"),
    ]


def test_the_rest_of_an_interrupted_uninstall_is_ignored(install):
    info = install("gone", RAISES)
    (info / "METADATA").unlink()
    assert found("gone") == []
