"""Placement is arithmetic: who gets which device, and what is said when it cannot be."""

import pytest

from forge_host.config.schema import ServiceConfig as S
from forge_host.errors import UsageError
from forge_host.runtime.placement import place


def gpus(services: dict[str, S], num_gpus: int) -> dict[str, tuple[str, tuple[tuple[int, ...], ...]]]:
    return {role: (p.device, p.gpus) for role, p in place(services, num_gpus).items()}


def test_disjoint_when_there_are_enough() -> None:
    asked = {"trainer": S(procs=2, with_gpus=True), "generator": S(procs=2, num_replicas=2, with_gpus=True)}
    placed = gpus(asked, 8)
    assert placed == {"trainer": ("cuda", ((0, 1),)), "generator": ("cuda", ((2, 3), (4, 5)))}


def test_no_gpu_at_all_is_cpu_unless_asked_for() -> None:
    assert gpus({"trainer": S(), "generator": S(num_replicas=2)}, 0) == {
        "trainer": ("cpu", ((),)),
        "generator": ("cpu", ((), ())),
    }


def test_one_gpu_is_shared_when_nobody_insists() -> None:
    placed = place({"trainer": S(), "generator": S(), "ref_model": S(with_gpus=False), "reward": S(with_gpus=False)}, 1)
    assert placed["trainer"].gpus == ((0,),) and placed["generator"].gpus == ((0,),)
    assert placed["generator"].shares_with == "trainer"
    assert placed["ref_model"].device == placed["reward"].device == "cpu"


def test_colocation_is_honoured() -> None:
    asked = {"trainer": S(procs=2, with_gpus=True), "generator": S(procs=2, with_gpus=True, colocate_with="trainer")}
    assert gpus(asked, 2) == {"trainer": ("cuda", ((0, 1),)), "generator": ("cuda", ((0, 1),))}


def test_the_seeds_three_roles_on_one_gpu_are_refused_with_the_sum_and_two_ways_out() -> None:
    asked = {role: S(with_gpus=True) for role in ("trainer", "generator", "ref_model")}
    with pytest.raises(UsageError) as error:
        place(asked, 1)
    text = str(error.value)
    assert "Insufficient GPU resources: 3 GPUs asked for" in text and "1 there" in text
    assert "trainer 1 x 1" in text and "services.ref_model.with_gpus: false" in text and "colocate_with" in text


def test_the_remedies_work() -> None:
    asked = {"trainer": S(with_gpus=True), "generator": S(with_gpus=True, colocate_with="trainer")}
    place({**asked, "ref_model": S(with_gpus=False)}, 1)


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (S(colocate_with="nobody"), "colocate_with names 'nobody'"),
        (S(procs=3, with_gpus=True, colocate_with="trainer"), "generator needs 3 GPUs but shares the 2 of trainer"),
    ],
)
def test_bad_colocation(generator: S, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        place({"trainer": S(procs=2, with_gpus=True), "generator": generator}, 2)
