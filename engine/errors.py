"""Every error the engine raises on purpose. `serve_app.errors` alone maps them to HTTP statuses."""


class EngineError(Exception):
    """Base of all errors below."""


class ConfigError(EngineError):
    """The configuration, the model or the machine does not allow the engine to start; the text names the field."""


class RequestError(EngineError):
    """One request cannot be served as asked; it fails alone.

    `param` names the field of the request at fault, in the words of the OpenAI API, or is None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.param)


def _rebuild(kind: type[RequestError], message: str, param: str | None) -> RequestError:
    return kind(message, param=param)


class InvalidRequest(RequestError):
    """A field has a value that no model could serve."""


class ContextTooLong(RequestError):
    """Prompt and max_tokens exceed the model's context."""


class RequestTooLarge(RequestError):
    """The prompt and one more token exceed the whole KV pool: it could never run, so it is refused at once."""


class QueueFull(RequestError):
    """The engine holds as many waiting requests as it may; try again later."""


class EngineDeadError(EngineError):
    """The engine stopped on a fault and serves nothing more; the text carries the cause."""


class IntegrityError(EngineError):
    """An owner's books do not add up: a bug of ours, found by `check_integrity()`."""
