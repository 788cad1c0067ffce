import json
import re

import pytest

from bench.policies.__main__ import main
from bench.policies.publish import throughput_table, throughput_text
from tests.bench.policies.fakes import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    main([
        "--setting", "seed", "--device", "sim:a100-40gb", "--model", "opt-13b", "--tiny", "--only", "static", "chunked",
        "--caps", "32", "128", "--rates", "1", "--results", str(results), "--name", "test",
    ])  # fmt: skip
    [found] = results.iterdir()
    return found


def test_a_sweep_leaves_pictures_a_page_and_the_data(folder):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-test", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "results.json", "index.html", "throughput.png", "throughput_short.png", "ratio_to_static.png", "latency.png",
        "occupancy.png", "kv_waste.png", "slots.png",
    }  # fmt: skip


def test_the_data_carry_what_a_figure_needs(folder):
    document = json.loads((folder / "results.json").read_text())
    assert document["schema"] == "conveyor-policies/1"
    assert {"commit", "machine", "versions", "command", "created", "target", "sentences"} <= document.keys()
    runs = document["runs"]
    assert [(r["label"], r["cap"], r["rate"]) for r in runs] == [
        ("static", 32, None), ("static (max_model_len)", 32, None), ("chunked", 32, None),
        ("static", 128, None), ("static (max_model_len)", 128, None), ("chunked", 128, None),
        ("static", 1536, 1.0), ("chunked", 1536, 1.0),
    ]  # fmt: skip
    assert all(r["summary"]["num_failed"] == 0 and r["summary"]["num_output_tokens"] > 0 for r in runs)
    assert len(runs[-1]["e2el_s"]) == 6
    assert [bool(r["steps"]["occupancy"]) for r in runs] == [False] * 3 + [True] * 3 + [False] * 2


def test_the_page_needs_no_network_and_holds_every_picture(folder):
    html = (folder / "index.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:)', html) == []
    assert "http://" not in html and "https://" not in html
    assert html.count("data:image/png;base64,") == 7
    traces = json.loads(re.search(r"const TRACES = (.*);\n", html).group(1))
    assert [trace["name"] for trace in traces] == ["static", "chunked"]
    for trace in traces:
        slots = {row[1] for step in trace["steps"] for row in step["rows"]}
        assert slots == set(range(trace["slots"]))
        assert len({row[0] for step in trace["steps"] for row in step["rows"]}) == 14


def test_repeats_stand_side_by_side_and_ratios_pair_them():
    runs = [
        run("static", 100.0, cap=32), run("chunked", 300.0, cap=32),
        run("static", 200.0, cap=32, repeat=1), run("chunked", 400.0, cap=32, repeat=1),
    ]  # fmt: skip
    table = throughput_table(runs)
    assert table.rows[1][:4] == ["chunked", "300.0, 400.0", "60.0, 80.0", "3.00, 2.00"]
    assert "300.0, 400.0 (60.0, 80.0) 3.00, 2.00×" in throughput_text(runs)


def test_a_sweep_does_not_overwrite_another(folder):
    with pytest.raises(SystemExit, match="give this sweep another --name"):
        main([
            "--setting", "seed", "--device", "sim:a100-40gb", "--model", "opt-13b", "--tiny", "--only", "chunked",
            "--caps", "32", "--rates", "--results", str(folder.parent), "--name", "test",
        ])  # fmt: skip
