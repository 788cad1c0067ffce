"""docs/api.md, made of the schemas: `python -m serve_app.api_table` writes it.

What is not a field of some schema (how prompts are read, what errors look like) is said in the text around the tables.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serve_app.openapi import Operation, schemas_of
from serve_app.operations import OPERATIONS
from serve_app.schemas.base import RequestBody

DOCUMENT = Path(__file__).parents[1] / "docs" / "api.md"
BEGIN, END = "<!-- tables: python -m serve_app.api_table -->", "<!-- end of tables -->"
_BOUNDS = {
    "minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}",
    "minLength": "{} characters or more", "maxLength": "{} characters at most", "minItems": "{} or more",
}  # fmt: skip


def with_tables(document: str) -> str:
    """`document` with what stands between the two marks made anew."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{_tables()}\n{END}{after}"


def _tables() -> str:
    schemas = schemas_of(OPERATIONS)
    return "\n".join(line for operation in OPERATIONS for line in _section(operation, schemas))


def _section(operation: Operation, schemas: dict[str, Any]) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}\n"
    yield f"{operation.summary}.\n"
    if operation.body is None:
        return
    yield "| field | type | default | range | what it does |"
    yield "|---|---|---|---|---|"
    schema = schemas[operation.body.__name__]
    for name, field in schema["properties"].items():
        required = name in schema.get("required", ())
        yield f"| `{name}` | {_type(field)} | {_default(field, required)} | {_range(field)} | {_meaning(field)} |"
    yield ""
    if refused := _refused(operation.body):
        yield f"Refused by name: {refused}.\n"


def _refused(body: type[RequestBody]) -> str:
    """Fields of the OpenAI reference that are known and not served, with the values that ask for nothing."""
    names = []
    for name, nothing in sorted(body.refused.items()):
        taken = " or ".join(f"`{value!r}`".replace("'", '"').replace("False", "false") for value in nothing)
        names.append(f"`{name}`" + (f" (but {taken})" if taken else ""))
    return ", ".join(names)


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field or "oneOf" in field:
        kinds = [_type(part) for part in field.get("anyOf") or field["oneOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "$ref" in field:
        return "object" if not field["$ref"].endswith("Mode") else "string"
    if "const" in field or "enum" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _default(field: dict[str, Any], required: bool) -> str:
    value = field.get("default")
    if required:
        return "required"
    return "" if value is None or value in ([], {}) else f"`{value}`".replace("True", "true").replace("False", "false")


def _range(field: dict[str, Any]) -> str:
    parts = [field, *(part for part in field.get("anyOf", ()) if part.get("type") != "null")]
    found = [
        text.format(_number(part[key]))
        for part in parts for key, text in _BOUNDS.items() if key in part
    ]  # fmt: skip
    return ", ".join(found)


def _number(value: float) -> str:
    """Large powers of two as such."""
    size = abs(value)
    if not isinstance(size, int) or size < 2**20 or size & (size - 1):
        return str(value)
    return f"{'-' if value < 0 else ''}2^{size.bit_length() - 1}"


def _meaning(field: dict[str, Any]) -> str:
    return str(field.get("description", "")).replace("\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
