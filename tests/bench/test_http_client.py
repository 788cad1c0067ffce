import pytest

from bench.replay import RequestFailed
from bench.workloads import WorkloadRequest
from tests.bench.fake_server import client_of, sse

REQUEST = WorkloadRequest(0, (5, 6, 7), 3)
PIECE = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}


async def test_a_stream_is_timed_by_its_pieces_and_counted_by_its_usage():
    deliveries = []
    async with client_of(sse(PIECE, PIECE, USAGE, "[DONE]")) as client:
        assert await client.send(REQUEST, lambda: deliveries.append(None)) == 3
    assert len(deliveries) == 2


async def test_the_request_asks_for_exactly_the_workload():
    bodies = []
    async with client_of(sse(PIECE, USAGE, "[DONE]"), bodies=bodies, api_key="k") as client:
        await client.send(REQUEST, lambda: None)
    body, authorization = bodies[0]
    assert authorization == "Bearer k"
    assert body == {
        "model": "the-model",
        "prompt": [5, 6, 7],
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (sse(PIECE, {"error": {"message": "engine died"}}), "error event.*engine died"),
        (sse(PIECE, USAGE), r"without \[DONE\]"),
        (sse(PIECE, "[DONE]"), "no usage"),
    ],
)
async def test_streams_that_do_not_end_well_fail(stream, error):
    async with client_of(stream) as client:
        with pytest.raises(RequestFailed, match=error):
            await client.send(REQUEST, lambda: None)


async def test_a_refusal_fails_with_status_and_body():
    async with client_of("", status=429) as client:
        with pytest.raises(RequestFailed, match=r"HTTP 429.*no"):
            await client.send(REQUEST, lambda: None)


async def test_a_server_that_vanishes_fails_the_request():
    async with client_of("") as client:
        client.url = "http://127.0.0.1:1"
        with pytest.raises(RequestFailed, match="Connect"):
            await client.send(REQUEST, lambda: None)
