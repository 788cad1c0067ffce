import json

import pytest

from bench import serving
from tests.bench.fake_server import server_of


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command line of a benchmark; returns what it saved."""
    monkeypatch.setattr("bench.options.load_vocabulary", lambda model: range(100))

    async def run(module, *arguments):
        await module.run(module.parser().parse_args([*arguments, "--results", str(tmp_path)]))
        [path] = tmp_path.iterdir()
        return json.loads(path.read_text())

    return run


async def test_a_run_over_http_is_printed_and_saved(run, capsys):
    async with server_of() as url:
        saved = await run(serving, "--url", url, "--workload", "burst", "chat", "--num-requests", "5", "--seed", "3")
    printed = capsys.readouterr().out
    assert "output tokens/s" in printed
    assert "5, of which 0 failed" in printed
    assert [m["workload"]["name"] for m in saved["measurements"]] == ["burst", "chat"]
    assert [m["workload"]["seed"] for m in saved["measurements"]] == [3, 3]
    assert len(saved["measurements"][0]["records"]) == 5


async def test_the_api_key_is_read_from_a_file_and_not_saved(run, tmp_path_factory):
    key_file = tmp_path_factory.mktemp("keys") / "key"
    key_file.write_text("secret-key\n")
    bodies = []
    async with server_of(bodies=bodies) as url:
        saved = await run(serving, "--url", url, "--num-requests", "2", "--api-key-file", str(key_file))
    assert {authorization for _, authorization in bodies} == {"Bearer secret-key"}
    assert "secret-key" not in json.dumps(saved)
