"""From an answer's text to content, reasoning and tool calls, piece by piece.

One file a format. A parser is pushed text as it comes and gives events (events.py); it reads one character at a time
(machine.py), so that the events of a text, merged, do not depend on how the text was cut. It never raises: what
cannot be read as a call is content.
"""
