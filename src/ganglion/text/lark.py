"""How texts are spelt in llguidance's Lark."""

import json


def quoted(text: str) -> str:
    """A text as a literal; its lexer takes JSON's strings, without the one control character JSON allows."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
