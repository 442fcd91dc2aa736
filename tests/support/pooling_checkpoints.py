"""A tiny encoder that embeds and one that ranks, with random weights, and what transformers makes of texts.

    python pooling_checkpoints.py FOLDER TEXTS.json        (the Python of vLLM's environment, which has both)

FOLDER gets `embedder/`, `ranker/` and `expected.json`: a vector of each text, a logit of each pair.
"""

import json
import sys
from pathlib import Path
from typing import Any

WORDS = (
    "the a sea is of and blue green deep cold river runs to fish swims boat sails on under over was in an old"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "initializer_range": 0.5,
}
TRANSFORMER, POOLING = (f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling"))
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": TRANSFORMER},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": POOLING},
]
MEAN = {
    "word_embedding_dimension": 64,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_cls_token": False,
    "pooling_mode_max_tokens": False,
}


def main() -> None:
    """Write both, and what they make of the texts and pairs."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    folder, texts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    torch.manual_seed(3)
    tokenizer = _tokenizer()
    config = {**SHAPE, "vocab_size": len(tokenizer)}
    embedder = BertModel(BertConfig(**config), add_pooling_layer=False).eval()
    ranker = BertForSequenceClassification(BertConfig(**config, num_labels=1)).eval()
    for name, model in (("embedder", embedder), ("ranker", ranker)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    (folder / "embedder" / "modules.json").write_text(json.dumps(MODULES))
    (folder / "embedder" / "1_Pooling").mkdir()
    (folder / "embedder" / "1_Pooling" / "config.json").write_text(json.dumps(MEAN))
    with torch.inference_mode():
        states = [embedder(**tokenizer(text, return_tensors="pt")) for text in texts["texts"]]
        logits = [ranker(**tokenizer(*pair, return_tensors="pt")).logits for pair in texts["pairs"]]
    expected = {
        "vectors": [each.last_hidden_state[0].mean(0).tolist() for each in states],
        "logits": [each.item() for each in logits],
    }
    (folder / "expected.json").write_text(json.dumps(expected))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys([*SIGNS, *WORDS.split(), *(f"##{each}" for each in LETTERS), *LETTERS, *".,?"])
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [(sign, vocabulary[sign]) for sign in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    named = {f"{sign[1:-1].lower()}_token": sign for sign in SIGNS}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=128, model_input_names=inputs, **named
    )


if __name__ == "__main__":
    main()
