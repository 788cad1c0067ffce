from serve_app.api_table import DOCUMENT, with_tables
from serve_app.operations import OPERATIONS


def test_the_document_says_what_the_schemas_say():
    """After a change of a schema: `python -m serve_app.api_table`."""
    assert with_tables(DOCUMENT.read_text()) == DOCUMENT.read_text()


def test_every_field_of_every_endpoint_is_in_it():
    text = DOCUMENT.read_text()
    for operation in OPERATIONS:
        assert f"### {operation.method} {operation.path}\n" in text
        for name in operation.body.model_fields if operation.body else ():
            assert f"| `{operation.body.model_fields[name].alias or name}` |" in text
