from bench.plots.style import FAMILIES, GREY, colour, dashes
from engine.scheduling.policies import policy_names


def test_every_policy_has_a_look_of_its_own():
    looks = {policy: (colour(policy), str(dashes(policy))) for policy in policy_names()}
    assert GREY not in {shade for shade, _ in looks.values()}
    assert len({shade for shade, _ in looks.values()}) == len(looks)


def test_members_of_a_family_differ_without_colours():
    for members in FAMILIES.values():
        assert len({str(dashes(policy)) for policy in members}) == len(members)
