"""The numbers of a checkpoint's config.json, under the names that families of models give them.

Law: a number beyond its bound is damage, and is refused: it would plan absurd memory.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

# The bounds of the GGUF reader.
_Layers = Annotated[int, Meta(ge=1, le=1 << 14)]
_Width = Annotated[int, Meta(ge=0, le=1 << 20)]
_LENGTH_LIMIT: Final = 1 << 31
_Length = Annotated[int, Meta(ge=1, le=_LENGTH_LIMIT)]
_Factor = Annotated[float, Meta(gt=0, le=1 << 16)]

_SCALED: Final = frozenset({"linear", "dynamic", "yarn"})
"""Kinds of rope scaling that lengthen the context; of the others the config names the length they reach."""
_UNSCALED_FAMILIES: Final = ("gemma3",)
"""Families whose factor is for some layers only, and whose config names the whole length already."""
_GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_CLASSIFYING: Final = "ForSequenceClassification"
_QUANTISED_FORMATS: Final = {"float-quantized": "FP8", "nvfp4-pack-quantized": "NVFP4"}
"""What people call the formats of compressed-tensors."""


class _Rope(Struct, frozen=True):
    """How positions beyond the trained ones are reached; newer files write the kind as `rope_type`."""

    rope_type: str | None = None
    type: str | None = None
    factor: _Factor | None = None
    original_max_position_embeddings: _Length | None = None


class _Language(Struct, frozen=True):
    """The language model's numbers."""

    model_type: str = ""
    max_position_embeddings: _Length | None = None
    n_positions: _Length | None = None
    n_ctx: _Length | None = None
    max_seq_len: _Length | None = None
    seq_length: _Length | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    num_hidden_layers: _Layers | None = None
    n_layer: _Layers | None = None
    num_layers: _Layers | None = None
    layer_types: Annotated[tuple[str, ...], Meta(max_length=1 << 14)] | None = None
    hidden_size: _Width | None = None
    n_embd: _Width | None = None
    d_model: _Width | None = None
    num_attention_heads: _Width | None = None
    n_head: _Width | None = None
    num_key_value_heads: _Width | None = None
    num_kv_heads: _Width | None = None
    multi_query: bool = False
    head_dim: _Width | None = None
    kv_lora_rank: _Width | None = None
    qk_rope_head_dim: _Width | None = None
    vocab_size: _Width | None = None

    @property
    def context_length(self) -> int:
        """Positions that the model reaches, 0 where its family takes them for granted."""
        lengths = (
            self.max_position_embeddings,
            self.n_positions,
            self.n_ctx,
            self.max_seq_len,
            self.seq_length,
        )
        written = next((length for length in lengths if length), 0)
        rope = self.rope_scaling or self.rope_parameters
        kind = None if rope is None else rope.rope_type or rope.type
        if rope is None or kind not in _SCALED or self.model_type.startswith(_UNSCALED_FAMILIES):
            return written
        # YaRN's factor counts from the length before it; some files name the longer one, too.
        trained = rope.original_max_position_embeddings if kind == "yarn" else None
        return min(max(written, int((trained or written) * (rope.factor or 1.0))), _LENGTH_LIMIT)

    @property
    def block_count(self) -> int:
        return self.num_hidden_layers or self.n_layer or self.num_layers or 0

    @property
    def width(self) -> int:
        """How wide the residual stream is."""
        return self.hidden_size or self.n_embd or self.d_model or 0

    @property
    def kv_values_per_token(self) -> int:
        """Key and value elements of one token over all layers; recurrent layers have none."""
        if self.kv_lora_rank:  # latent attention keeps one compressed vector for all heads
            return self._attention_layers * (self.kv_lora_rank + (self.qk_rope_head_dim or 0))
        heads = self.num_attention_heads or self.n_head or 0
        head_length = self.head_dim or (self.width // heads if heads else 0)
        return self._attention_layers * self._kv_heads(heads) * head_length * 2

    @property
    def _attention_layers(self) -> int:
        if self.layer_types is None:
            return self.block_count
        kinds = self.layer_types[: self.block_count]
        return sum("attention" in kind and "linear" not in kind for kind in kinds)

    def _kv_heads(self, heads: int) -> int:
        for written in (self.num_key_value_heads, self.num_kv_heads):
            if written is not None:
                return written
        return 1 if self.multi_query else heads


class _Vision(Struct, frozen=True):
    """Its presence means that the model reads images."""


class _Quantised(Struct, frozen=True):
    quant_method: str = ""
    quant_algo: str | None = None
    format: str | None = None

    @property
    def name(self) -> str:
        """What people call it: the method, or the element type where the method is only a container."""
        of_format = _QUANTISED_FORMATS.get(self.format or "")
        return (of_format or self.quant_algo or self.quant_method)[:32].upper()


class _MlxQuantised(Struct, frozen=True):
    """MLX packs weights in a way of its own; other programs cannot read them."""

    bits: int | None = None


class CheckpointConfig(_Language, frozen=True):
    """config.json; a model that also sees keeps its language model's numbers in `text_config`."""

    architectures: tuple[str, ...] | None = None
    text_config: _Language | None = None
    vision_config: _Vision | None = None
    quantization_config: _Quantised | None = None
    quantization: _MlxQuantised | None = None
    id2label: dict[str, object] | None = None
    num_labels: int | None = None

    @property
    def language(self) -> _Language:
        """The numbers of the language model."""
        return self.text_config or self

    @property
    def architecture(self) -> str:
        """The family, as `architecture` of a GGUF file; empty where the file does not say."""
        return self.model_type or next(iter(self.architectures or ()), "")

    @property
    def is_causal(self) -> bool:
        """Whether it continues text."""
        return any(name.endswith(_GENERATING) for name in self.architectures or ())

    @property
    def is_reranker(self) -> bool:
        """Whether it gives a pair of texts one number."""
        labels = self.num_labels if self.id2label is None else len(self.id2label)
        return labels == 1 and any(name.endswith(_CLASSIFYING) for name in self.architectures or ())
