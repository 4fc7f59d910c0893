"""Placement is arithmetic: who gets which host, device and core, and what is said when it cannot be."""

import re

import attrs
import pytest

from forge_host.config.schema import ServiceConfig as S
from forge_host.errors import UsageError
from forge_host.runtime.holding import Hold, beside
from forge_host.runtime.hosts import Host, parse_cpu_list, promised, this_machine
from forge_host.runtime.placement import Place, Spot, place


def machine(gpus: int = 0, cpus: int = 8, count: int = 1) -> list[Host]:
    return [promised(f"h{i}", cpus=cpus, gpus=gpus) for i in range(count)]


def spots(places: dict[str, Place]) -> dict[str, list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]]:
    return {role: [(spot.hosts, spot.gpus) for spot in p.spots] for role, p in places.items()}


# --- GPUs of one host -------------------------------------------------------------------------------------------------


def test_disjoint_when_there_are_enough() -> None:
    asked = {"trainer": S(procs=2, with_gpus=True), "generator": S(procs=2, num_replicas=2, with_gpus=True)}
    assert spots(place(asked, machine(8))) == {
        "trainer": [((0,), ((0, 1),))],
        "generator": [((0,), ((2, 3),)), ((0,), ((4, 5),))],
    }


def test_no_gpu_at_all_is_cpu_unless_asked_for() -> None:
    placed = place({"trainer": S(), "generator": S(num_replicas=2)}, machine())
    assert {role: p.device for role, p in placed.items()} == {"trainer": "cpu", "generator": "cpu"}
    assert placed["generator"].spots == (Spot((0,)), Spot((0,))) and not placed["generator"].devices


def test_one_gpu_is_shared_when_nobody_insists() -> None:
    cpu = S(with_gpus=False)
    placed = place({"trainer": S(), "generator": S(), "ref_model": cpu, "reward": cpu}, machine(1))
    assert placed["trainer"].devices == placed["generator"].devices == {(0, 0)}
    assert placed["generator"].shares_with == "trainer"
    assert placed["ref_model"].device == placed["reward"].device == "cpu"


def test_colocation_is_honoured() -> None:
    asked = {"trainer": S(procs=2, with_gpus=True), "generator": S(procs=2, with_gpus=True, colocate_with="trainer")}
    placed = place(asked, machine(2))
    assert placed["trainer"].devices == placed["generator"].devices == {(0, 0), (0, 1)}


def test_named_gpus_are_taken_and_left_out_of_the_rest() -> None:
    placed = place({"trainer": S(), "generator": S(procs=2, gpus=(0, 3)), "ref_model": S()}, machine(4))
    assert placed["generator"].spots == (Spot((0,), ((0, 3),)),)
    assert placed["trainer"].devices == {(0, 1)} and placed["ref_model"].devices == {(0, 2)}


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_a_trainer_takes_as_few_hosts_as_its_gpus_need() -> None:
    asked = {"trainer": S(procs=4, with_gpus=True), "generator": S(procs=2, num_replicas=2, with_gpus=True)}
    assert spots(place(asked, machine(4, count=2))) == {
        "trainer": [((0,), ((0, 1, 2, 3),))],
        "generator": [((1,), ((0, 1),)), ((1,), ((2, 3),))],
    }
    assert spots(place({"trainer": S(procs=8, with_gpus=True)}, machine(4, count=2)))["trainer"] == [
        ((0, 1), ((0, 1, 2, 3), (0, 1, 2, 3)))
    ]


def test_hosts_divides_the_processes() -> None:
    asked = {"trainer": S(procs=4, hosts=2, with_gpus=True), "generator": S(procs=2, with_gpus=True)}
    placed = place(asked, machine(4, count=3))
    assert spots(placed) == {"trainer": [((0, 1), ((0, 1), (0, 1)))], "generator": [((0,), ((2, 3),))]}


def test_cpu_roles_spread_over_the_hosts_and_colocated_ones_stay_together() -> None:
    asked = {"trainer": S(), "generator": S(num_replicas=2), "reward": S(), "ref_model": S(colocate_with="trainer")}
    placed = place(asked, machine(count=3))
    assert {role: [spot.hosts for spot in p.spots] for role, p in placed.items()} == {
        "trainer": [(0,)], "generator": [(1,), (2,)], "ref_model": [(0,)], "reward": [(1,)],
    }  # fmt: skip


# --- cores ------------------------------------------------------------------------------------------------------------


def cores(places: dict[str, Place]) -> dict[str, list[tuple[int, ...]]]:
    return {role: [spot.cores for spot in p.spots] for role, p in places.items()}


TWO = {"trainer": S(), "generator": S(), "reward": S(with_gpus=False)}


def test_two_roles_on_two_cores_get_one_each_when_they_work_at_the_same_time() -> None:
    assert cores(place(TWO, machine(cpus=2), asynchronous=True)) == {
        "trainer": [(0,)], "generator": [(1,)], "reward": [()],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cpus", "options"),
    [(2, {"asynchronous": False}), (2, {"asynchronous": True, "pin_cores": "never"}), (1, {"asynchronous": True})],
)
def test_roles_that_take_turns_or_have_too_few_cores_are_left_free(cpus, options) -> None:
    assert set(cores(place(TWO, machine(cpus=cpus), **options))["trainer"]) == {()}


def test_always_binds_and_says_when_it_cannot() -> None:
    assert cores(place(TWO, machine(cpus=5), pin_cores="always"))["trainer"] == [(0, 1, 2)]
    with pytest.raises(UsageError, match="pin_cores is always, and h0 has 1 cores for 2 replicas"):
        place(TWO, machine(cpus=1), pin_cores="always")


def test_a_replica_stays_within_a_numa_node_where_it_fits() -> None:
    host = Host(name="h", cpus=((0, 1, 2, 3), (4, 5, 6, 7)))
    placed = place({"trainer": S(), "generator": S(num_replicas=3)}, [host], asynchronous=True)
    assert cores(placed) == {"trainer": [(0, 1)], "generator": [(4, 5), (2, 3), (6, 7)]}
    placed = place({"trainer": S(), "generator": S()}, [host], asynchronous=True)
    assert cores(placed) == {"trainer": [(0, 1, 2, 3)], "generator": [(4, 5, 6, 7)]}


def test_a_colocated_role_shares_the_cores_too() -> None:
    asked = {"trainer": S(), "generator": S(), "ref_model": S(colocate_with="trainer")}
    placed = cores(place(asked, machine(cpus=4), asynchronous=True))
    assert placed == {"trainer": [(0, 1)], "generator": [(2, 3)], "ref_model": [(0, 1)]}


def test_cores_of_this_machine() -> None:
    assert parse_cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert this_machine().num_cpus >= 1


def test_gpus_that_are_visible_are_the_ones_there_are(monkeypatch) -> None:
    for visible, names in (("2,3", ("2", "3")), ("", ()), ("0,-1,1", ("0",)), ("GPU-8f", ("GPU-8f",))):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert this_machine().gpus == names


# --- what cannot be ---------------------------------------------------------------------------------------------------


def refusal(asked: dict[str, S], hosts: list[Host], grow: str | None = None) -> str:
    with pytest.raises(UsageError) as error:
        place(asked, hosts, grow=grow)
    return str(error.value)


def follow(asked: dict[str, S], hosts: list[Host], advice: str, grow: str | None) -> dict[str, Place]:
    """Do what the error says."""
    changed, more = dict(asked), list(hosts)
    for key, value in re.findall(r"([\w.]+): ([\w]+)", advice):
        parsed = {"true": True, "false": False, "null": None}.get(value, int(value) if value.isdigit() else value)
        if key == grow:
            more = [hosts[0]] * parsed
        else:
            _, role, field = key.split(".")
            changed[role] = attrs.evolve(changed[role], **{field: parsed})
    return place(changed, more)


G = {"with_gpus": True}


@pytest.mark.parametrize(
    ("asked", "hosts", "grow", "words"),
    [
        (
            {role: S(**G) for role in ("trainer", "generator", "ref_model")}, machine(1), None,
            ("3 GPUs asked for (generator 1 x 1, ref_model 1 x 1, trainer 1 x 1), 1 there",
             "services.ref_model.with_gpus: false and services.generator.colocate_with: trainer"),
        ),
        (
            {"trainer": S(procs=4, **G), "generator": S(procs=2, num_replicas=4, **G)}, machine(8), None,
            ("12 GPUs asked for (generator 2 x 4, trainer 4 x 1), 8 there", "services.generator.num_replicas: 2"),
        ),
        (
            {"trainer": S(procs=8, **G), "generator": S(procs=8, num_replicas=2, **G)}, machine(8, count=2),
            "launcher.nodes", ("24 GPUs asked for", "16 there (2 hosts x 8)", "services.generator.num_replicas: 1"),
        ),
        (
            {"trainer": S(procs=3, hosts=1, **G), "generator": S(procs=3, **G)}, machine(2, count=3), "launcher.nodes",
            ("6 GPUs asked for", "6 there (3 hosts x 2) in all, but not in this shape"),
        ),
        (
            {"trainer": S(procs=16, hosts=4, **G)}, machine(8, count=2), "launcher.nodes",
            ("services.trainer.hosts is 4 and the launcher has 2 hosts", "services.trainer.hosts: 2",
             "launcher.nodes: 4"),
        ),
    ],
)  # fmt: skip
def test_an_impossible_plan_is_refused_with_the_sum_and_two_ways_that_work(asked, hosts, grow, words) -> None:
    text = refusal(asked, hosts, grow)
    assert all(word in text for word in words), text
    ways = text.rpartition("; set ")[2].split(" or set ")
    assert len(ways) == 2, text
    for way in ways:
        follow(asked, hosts, way, grow)


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (S(colocate_with="nobody"), "colocate_with names 'nobody'"),
        (S(procs=3, with_gpus=True, colocate_with="trainer"), "generator needs 3 GPUs but shares the 2 of trainer"),
        (S(gpus=(0, 1), procs=2), "services.trainer.gpus and services.generator.gpus both name GPU 1"),
        (S(gpus=(7,)), "services.generator.gpus names GPU 7, and a host has 0 to 3"),
        (S(gpus=(2,), colocate_with="trainer"), "services.generator has both colocate_with and gpus"),
        (S(procs=3, hosts=2), "services.generator.procs 3 cannot be divided over services.generator.hosts 2"),
    ],
)
def test_bad_combinations(generator: S, words: str) -> None:
    text = refusal({"trainer": S(procs=2, gpus=(1, 2)), "generator": generator}, machine(4, count=2))
    assert words in text and "; " in text


def test_gpus_cannot_be_shared_with_a_role_on_the_cpu() -> None:
    asked = {"trainer": S(with_gpus=False), "generator": S(with_gpus=True, colocate_with="trainer")}
    assert "trainer, which has none" in refusal(asked, machine(2))


# --- one after the other, without a plan ------------------------------------------------------------------------------


def test_a_newcomer_gets_what_nobody_holds() -> None:
    hosts, held = machine(4), dict[str, Hold]()
    for role, service in {
        "trainer": S(procs=2, with_gpus=True), "generator": S(gpus=(3,)), "judge": S(colocate_with="trainer"),
        "ref_model": S(), "late": S(), "reward": S(with_gpus=False),
    }.items():  # fmt: skip
        held[role] = Hold(service, beside(role, service, hosts, held))
    assert {role: sorted(hold.place.devices) for role, hold in held.items()} == {
        "trainer": [(0, 0), (0, 1)], "generator": [(0, 3)], "judge": [(0, 0)], "ref_model": [(0, 2)], "late": [],
        "reward": [],
    }  # fmt: skip
    asked = "5 GPUs asked for (extra 1 x 1, generator 1 x 1, ref_model 1 x 1, trainer 2 x 1), 4 there; shut one of"
    for service, said in (
        (S(with_gpus=True), f"Insufficient GPU resources: {asked}"),
        (S(gpus=(2,)), "extra names GPU 2, which ref_model holds; share it with colocate_with='ref_model'"),
        (S(gpus=(4,)), "extra names GPU 4, and a host has 4"),
        (S(colocate_with="nobody"), "extra: colocate_with names 'nobody', which does not run; start it first"),
        (S(colocate_with="late", with_gpus=True), "shares the devices of late, which has none"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            beside("extra", service, hosts, held)


def test_newcomers_on_the_cpu_spread_over_hosts() -> None:
    hosts, held = machine(count=2), dict[str, Hold]()
    for role, service in {"a": S(), "b": S(num_replicas=2), "c": S(colocate_with="a")}.items():
        held[role] = Hold(service, beside(role, service, hosts, held))
    assert [[spot.hosts for spot in hold.place.spots] for hold in held.values()] == [[(0,)], [(1,), (0,)], [(0,)]]
    with pytest.raises(UsageError, match="hosts is 3 and the launcher has 2 hosts"):
        beside("d", S(hosts=3, procs=3), hosts, held)
