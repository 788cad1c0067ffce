"""Calls written as JSON: {"name": …, "arguments": {…}}, read so that arguments can be passed on as they come.

Lenient within values: brackets have to match and strings to end, no more. Models make small mistakes, and what they
wrote is what the client gets: the OpenAI reference has clients validate arguments too.
"""

import json
from collections.abc import Callable, Collection
from string import ascii_letters, digits

from engine.text.parsers.machine import Machine, Malformed, Reading

_ARGUMENTS = frozenset({"arguments", "parameters"})
_OTHER_KEYS = frozenset({"id", "type"})            # that models are known to write beside the two
_MAX_NAME = 256                                    # characters of a key or name, escapes included
_CLOSING = {"{": "}", "[": "]"}
_BETWEEN = frozenset(",:")
_SCALAR = frozenset("+-." + digits + ascii_letters)


def read_call(machine: Machine, names: Collection[str]) -> Reading[None]:
    """One call of a function of `names`, its keys in any order; `arguments` may be missing for none.

    Raises Malformed as long as the call has not begun. Once it has, whatever is wrong ends it.
    """
    name: str | None = None
    held: list[str] | None = None                  # arguments that came before the name
    has_begun = False
    try:
        yield from machine.expect("{")
        while True:
            key = yield from _read_key(machine)
            if key == "name" and name is None:
                name = yield from read_string(machine)
                if name not in names:
                    raise Malformed
                if held is not None:
                    has_begun = True
                    machine.start_call(name)
                    machine.arguments("".join(held))
            elif key in _ARGUMENTS and held is None and not has_begun:
                if machine.current != "{":
                    raise Malformed
                if name is None:
                    held = []
                    yield from copy_value(machine, held.append)
                else:
                    has_begun = True
                    machine.start_call(name)
                    yield from copy_value(machine, machine.arguments)
            elif key in _OTHER_KEYS or has_begun:
                yield from copy_value(machine, _drop)
            else:
                raise Malformed
            yield from machine.skip_space()
            if machine.current != ",":
                break
            yield
        yield from machine.expect("}")
        if name is None:
            raise Malformed
        if not has_begun:
            machine.start_call(name)
            machine.arguments("{}")
    except Malformed:
        if not has_begun:
            raise
    machine.end_call()


def _read_key(machine: Machine) -> Reading[str]:
    yield from machine.skip_space()
    key = yield from read_string(machine)
    yield from machine.skip_space()
    yield from machine.expect(":")
    yield from machine.skip_space()
    return key


def read_string(machine: Machine) -> Reading[str]:
    """What a short JSON string means."""
    raw: list[str] = []

    def keep(character: str) -> None:
        if len(raw) >= _MAX_NAME:
            raise Malformed
        raw.append(character)

    yield from copy_string(machine, keep)
    try:
        return str(json.loads("".join(raw), strict=False))
    except ValueError:
        raise Malformed from None


def copy_string(machine: Machine, out: Callable[[str], None]) -> Reading[None]:
    """A JSON string, as it is."""
    if machine.current != '"':
        raise Malformed
    is_escaped = is_over = False
    out('"')
    yield
    while not is_over:
        character = machine.current
        if not character:
            raise Malformed
        out(character)
        is_over = character == '"' and not is_escaped
        is_escaped = character == "\\" and not is_escaped
        yield


def copy_value(machine: Machine, out: Callable[[str], None]) -> Reading[None]:
    """A JSON value, as it is."""
    closing: list[str] = []
    while True:
        character = machine.current
        if character == '"':
            yield from copy_string(machine, out)
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
            out(character)
            yield
        elif closing and character == closing[-1]:
            closing.pop()
            out(character)
            yield
        elif closing and (character in _BETWEEN or character.isspace()):
            out(character)
            yield
        elif character in _SCALAR:
            while machine.current in _SCALAR:
                out(machine.current)
                yield
        else:
            raise Malformed
        if not closing:
            return


def _drop(character: str) -> None:
    pass
