import pickle

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError

from engine.api import ContextTooLong, EngineDeadError, InvalidRequest, QueueFull, RequestTooLarge
from serve_app.errors import answer_for, to_api_error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("no", param="prompt"), 400, None),
        (ContextTooLong("long", param="max_tokens"), 400, "context_length_exceeded"),
        (RequestTooLarge("large", param="prompt"), 400, None),
        (QueueFull("full"), 503, "queue_full"),
        (EngineDeadError("dead"), 503, "service_unavailable"),
        (ActorDiedError(), 503, "service_unavailable"),
        (BackPressureError(3, 2), 503, "queue_full"),
    ],
)
def test_statuses(error: Exception, status: int, code: str | None) -> None:
    answer = to_api_error(error)
    assert answer is not None
    assert (answer.status, answer.code) == (status, code)
    assert ("Retry-After" in answer.headers) == (status == 503)


def test_param_survives_the_ray_boundary() -> None:
    cause = pickle.loads(pickle.dumps(ContextTooLong("long", param="max_tokens")))
    answer = to_api_error(RayTaskError("submit", "traceback", cause).as_instanceof_cause())
    assert answer is not None
    assert (answer.status, answer.message, answer.param) == (400, "long", "max_tokens")


def test_a_fault_of_ours_tells_clients_nothing() -> None:
    assert to_api_error(KeyError("secret")) is None
    answer = answer_for(KeyError("secret"))
    assert answer.status == 500
    assert "secret" not in str(answer.body())
    assert answer.body()["error"]["type"] == "server_error"
