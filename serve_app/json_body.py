"""JSON bodies read strictly: what two readers could take for different things is refused."""

import json
from typing import Any, NoReturn

from serve_app.errors import ApiError, bad_request

MAX_DEPTH = 64                                       # of nested arrays and objects


def parse_json(body: bytes) -> Any:
    """The value of `body`, UTF-8. Raises ApiError for what is no JSON (NaN is none), and for a key given twice."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except ApiError:
        raise
    except UnicodeDecodeError as error:
        raise _invalid(f"it is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _invalid(f"it is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:                      # JSONDecodeError, and integers of thousands of digits
        raise _invalid(str(error)) from None
    if _is_deeper(value, MAX_DEPTH):
        raise _invalid(f"it is nested more than {MAX_DEPTH} deep")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise bad_request(f"the key '{twice}' is given twice", twice, "invalid_json")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON number")


def _is_deeper(value: Any, depth: int) -> bool:
    """Level by level: no recursion, and flat lists of token ids cost one look at each."""
    level = [value]
    while level:
        depth -= 1
        inner = []
        for container in level:
            if isinstance(container, dict):
                inner += [item for item in container.values() if isinstance(item, (dict, list))]
            elif isinstance(container, list):
                inner += [item for item in container if isinstance(item, (dict, list))]
        if inner and depth <= 0:
            return True
        level = inner
    return False


def _invalid(detail: str) -> ApiError:
    return bad_request(f"the body is not valid JSON: {detail}", code="invalid_json")
