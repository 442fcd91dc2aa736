"""Whether a grammar accepts a text, byte by byte, as llguidance compiles it."""

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

END = 256


class _Bytes:
    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes((value,)) for value in range(256)), b"\xff<end>")
    special_token_ids = ()

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, eos_token=END, slices=[])


def accepts(grammar: str | None, text: str) -> bool:
    """Whether the text is whole: every byte may come, and then the end."""
    assert grammar is not None
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode()
    for at, byte in enumerate(data):
        if matcher.is_stopped() or matcher.try_consume_tokens([byte]) != 1:
            assert at < len(data)
            return False
    return bool(matcher.is_accepting())
