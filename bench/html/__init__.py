"""One self-contained page for a result: figures embedded, tables, a slider through iterations; no network."""
