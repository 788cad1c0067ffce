"""docs/policies.md names what there is, and links to what exists."""

import re
from pathlib import Path

import pytest

from engine.scheduling.policies import parameters_class, policy_names

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
TEXT = PAGE.read_text(encoding="utf-8")


def row(policy):
    """The policy's row in the table of parameters."""
    section = TEXT.split("### Parameters")[1].split("\n## ")[0]
    [found] = re.findall(rf"^\| `{policy}` \| (.*) \|$", section, re.MULTILINE)
    return found


def shown(default):
    if isinstance(default, bool):
        return str(default).lower()
    return "–" if default is None else f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("policy", policy_names())
def test_every_parameter_is_listed_with_its_default(policy):
    fields = parameters_class(policy).model_fields
    listed = dict(re.findall(r"`(\w+)`(?: ([^,]+))?", row(policy)))
    assert list(listed) == list(fields)
    for name, field in fields.items():
        if name != "reserve":
            assert listed[name] == shown(field.get_default(call_default_factory=True)), name


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_is_explained(policy):
    assert len(re.findall(rf"^\| `{policy}` \|", TEXT, re.MULTILINE)) >= 2


def test_links_lead_somewhere():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert len(targets) > 8
    assert [target for target in targets if not (PAGE.parent / target.partition("#")[0]).exists()] == []
