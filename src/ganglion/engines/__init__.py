"""Everything that answers: echo for tests and demos, llama for real models.

`table.py` names the engines. Nothing here knows a wire or a server.
"""
