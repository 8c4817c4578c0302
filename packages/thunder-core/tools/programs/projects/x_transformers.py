# SPDX-License-Identifier: Apache-2.0
"""x-transformers: the first forty models of the README, in its order, with smaller widths and vocabularies."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("x-transformers", rank=3870, requires=["x-transformers==2.31.*"])

_SIZE = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}


def _tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(0, 64, (1, length))


@PROJECT.program("XTransformer", "README, Full encoder / decoder", trains=True)
def _full(**options: Any) -> Any:
    import x_transformers as x

    model = x.XTransformer(
        dim=32, enc_num_tokens=64, enc_depth=2, enc_heads=4, enc_max_seq_len=32, dec_num_tokens=64, dec_depth=2,
        dec_heads=4, dec_max_seq_len=32, **(options or {"tie_token_emb": True}),
    )  # fmt: skip

    def inputs() -> Any:
        source = _tokens()
        return {"src": source, "tgt": _tokens(), "mask": torch.ones_like(source).bool()}

    return model, inputs


@PROJECT.program("Encoder-only", "README, Encoder-only (BERT-like)")
def _bert() -> Any:
    import x_transformers as x

    model = x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=x.Encoder(**_SIZE))
    return model, lambda: {"x": _tokens(), "mask": torch.ones(1, 16).bool()}


@PROJECT.program("Vision transformer", "README, State of the art image classification")
def _vit() -> Any:
    import x_transformers as x

    model = x.ViTransformerWrapper(image_size=64, patch_size=16, num_classes=10, attn_layers=x.Encoder(**_SIZE))
    return model, lambda: (torch.randn(1, 3, 64, 64),)


@PROJECT.program("Image captioning", "README, Image -> caption")
def _caption() -> Any:
    import x_transformers as x

    encoder = x.ViTransformerWrapper(image_size=64, patch_size=16, attn_layers=x.Encoder(**_SIZE))
    layers = x.Decoder(**_SIZE, cross_attend=True)
    decoder = x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)

    def caption(img: Any, text: Any) -> Any:
        return decoder(text, context=encoder(img, return_embeddings=True))

    return caption, lambda: (torch.randn(1, 3, 64, 64), _tokens()), encoder, decoder


@PROJECT.program("PaLI", "README, PaLI", trains=True)
def _pali() -> Any:
    import x_transformers as x

    vit = x.ViTransformerWrapper(image_size=64, patch_size=16, attn_layers=x.Encoder(**_SIZE))
    pali, _ = _full()[:2]

    def step(img: Any, prompt: Any, text: Any) -> Any:
        return pali(prompt, text, src_prepend_embeds=vit(img, return_embeddings=True))

    return step, lambda: (torch.randn(1, 3, 64, 64), _tokens(), _tokens()), vit, pali


def _wrapped(title: str, layers: str = "Decoder", around: dict[str, Any] | None = None, **options: Any) -> None:
    """Add a `TransformerWrapper` with these options of the attention layers."""

    def build() -> Any:
        import x_transformers as x

        attention = getattr(x, layers)(**{**_SIZE, **options})
        model = x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=attention, **(around or {}))
        return model, lambda: (_tokens(),)

    PROJECT.add(title, f"README, {title}", build)


_wrapped("Decoder-only")
_wrapped("Dropouts", around={"emb_dropout": 0.1}, layer_dropout=0.1, attn_dropout=0.1, ff_dropout=0.1)
_wrapped("Flash Attention", attn_flash=True)
_wrapped("Persistent Memory", "Encoder", attn_num_mem_kv=16)
_wrapped("Memory Transformers", "Encoder", around={"num_memory_tokens": 4})
_wrapped("Transformers Without Tears", use_scalenorm=True)
_wrapped("l2norm_embed", around={"l2norm_embed": True})
_wrapped("post_emb_norm", around={"post_emb_norm": True})
_wrapped("RMSNorm", use_rmsnorm=True)
_wrapped("Simple RMSNorm", use_simple_rmsnorm=True)
_wrapped("GLU", ff_glu=True)
_wrapped("Swish GLU", ff_swish=True, ff_glu=True)
_wrapped("No Bias in Feedforward", ff_no_bias=True)
_wrapped("ReLU squared", ff_relu_squared=True)
_wrapped("Explicit Sparse Transformer", attn_sparse_topk=8, attn_sparse_topk_straight_through=True)
_wrapped("Hard attention", attn_hard=True)
_wrapped("Talking-Heads", attn_pre_talking_heads=True, attn_post_talking_heads=True)
_wrapped("One Write-Head", attn_one_kv_head=True)
_wrapped("Grouped queries", attn_kv_heads=2)
_wrapped("Attention on Attention", "Encoder", attn_on_attn=True)
_wrapped("Gate values", "Encoder", attn_gate_values=True)
_wrapped("Sandwich", "Encoder", sandwich_coef=2)
_wrapped("Weight-tied Layers", "Encoder", weight_tie_layers=True)
_wrapped("Recurrent layers", custom_layers=("a", "f", "a", "f"), layers_execute_order=(0, 1, 0, 1, 2, 3, 2, 3))
_wrapped("Macaron", "Encoder", macaron=True)
_wrapped("T5's relative positions", rel_pos_bias=True)
_wrapped("Residual Attention", "Encoder", pre_norm=False, residual_attn=True)
PROJECT.add("Cross residual attention", "README, Residual Attention", lambda: _full(dec_cross_residual_attn=True))


@PROJECT.program("Transformer-XL", "README, Transformer-XL recurrence")
def _xl(**options: Any) -> Any:
    import x_transformers as x

    layers = x.Decoder(**_SIZE, **(options or {"rel_pos_bias": True}))
    around = {"shift_mem_down": 1} if options else {}
    model = x.TransformerWrapper(num_tokens=64, max_seq_len=16, max_mem_len=32, attn_layers=layers, **around)

    def segments(one: Any, two: Any, three: Any) -> Any:
        _, memories = model(one, return_mems=True)
        _, memories = model(two, mems=memories, return_mems=True)
        return model(three, mems=memories, return_mems=True)

    return segments, lambda: (_tokens(), _tokens(), _tokens()), model


PROJECT.add("Enhanced recurrence", "README, Enhanced recurrence", lambda: _xl(rotary_pos_emb=True))
_wrapped("Gated residual", gate_residual=True)
_wrapped("Rotary", rotary_pos_emb=True)
_wrapped("xPos", rotary_xpos=True)
_wrapped("Dynamic positional bias", dynamic_pos_bias=True, dynamic_pos_bias_log_distance=False)
_wrapped("ALiBi", alibi_pos_bias=True, alibi_num_heads=2)
