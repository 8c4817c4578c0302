# SPDX-License-Identifier: Apache-2.0
"""How the models of Transformers are built and called: small, from their configurations, nothing downloaded."""

from __future__ import annotations

import os
from typing import Any

import torch

from zoo.entry import Entry, Inputs

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

__all__ = [
    "audio",
    "causal",
    "decoder",
    "encoder",
    "image",
    "listener",
    "pictures_and_text",
    "seeing",
    "seeing_grids",
    "seq2seq",
    "unpadded",
]

VOCABULARY = 99
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# The sizes that most text models call by these names.
SMALL = {
    **TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


def build(model_type: str, task: str, options: dict[str, Any]) -> torch.nn.Module:
    """A model of a type, with a head for a task (the end of the name of an Auto class)."""
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **options)
    return getattr(transformers, f"AutoModel{task}").from_config(config)


def tokens(seed: int, other: bool, length: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers and the mask of padding at the end of the first sequence."""
    generator = torch.Generator().manual_seed(seed)
    batch, length = (3, length + 3) if other else (2, length)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, length - 2 - seed % 2 :] = 0
    return ids, mask


def text(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """For models that say something of each token: labels where there is no padding."""
    ids, mask = tokens(seed, other)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}


def unpadded(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """For models that give NaN where everything is masked."""
    ids = tokens(seed, other)[0]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def pair_of_texts(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """For encoder-decoders."""
    ids, mask = tokens(seed, other)
    return {"input_ids": ids, "attention_mask": mask, "labels": tokens(seed + 7, other, 6)[0]}


def classes(number: int, key: str, shape: tuple[int, ...]) -> Any:
    """For classifiers of pictures or sounds."""

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        batch = 3 if other else 2
        labels = torch.randint(number, (batch,), generator=generator)
        return {key: torch.randn(batch, *shape, generator=generator, dtype=dtype), "labels": labels}

    return inputs


def encoder(model_type: str, *, task: str = "ForMaskedLM", note: str = "", **options: Any) -> Entry:
    """A model that reads a text."""
    sizes = {**SMALL, **options}

    def labelled(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        given = text(dtype, seed, other)
        if task == "ForSequenceClassification":
            given["labels"] = given["input_ids"][:, 0] % 2
        elif task == "ForTokenClassification":
            given["labels"] = given["input_ids"] % 2
        return given

    return Entry(model_type, "encoder", lambda: build(model_type, task, sizes), labelled, note=note)


def causal(name: str, model_type: str, sizes: dict[str, Any], *, family: str = "decoder", **options: Any) -> Entry:
    """A model that continues a text; `sizes` as its configuration calls them."""
    sizes = {**TOKENS, **sizes}
    options.setdefault("generate", ("dynamic", "static", "sampled"))
    inputs = options.pop("inputs", text)
    return Entry(name, family, lambda: build(model_type, "ForCausalLM", sizes), inputs, **options)


def decoder(model_type: str, *, dtype: torch.dtype = torch.float64, **options: Any) -> Entry:
    """A model that continues a text, of the usual names of sizes, with grouped queries."""
    return causal(model_type, model_type, {**GROUPED, **options}, dtype=dtype)


def seq2seq(model_type: str, *, dtype: torch.dtype = torch.float64, note: str = "", **options: Any) -> Entry:
    """A model that reads one text and writes another."""
    sides = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "decoder_start_token_id": 1,
    }
    sizes = {**TOKENS, **(options if "d_ff" in options else {**sides, **options})}
    return Entry(
        model_type, "encoder-decoder", lambda: build(model_type, "ForSeq2SeqLM", sizes), pair_of_texts,
        dtype=dtype, generate=("dynamic", "static", "sampled"), note=note,
    )  # fmt: skip


def image(
    model_type: str, *, size: int = 16, task: str = "ForImageClassification", note: str = "", **options: Any
) -> Entry:
    """A classifier of pictures."""
    sizes = {"num_labels": 5, "problem_type": "single_label_classification", **options}
    inputs = classes(5, "pixel_values", (3, size, size))
    return Entry(model_type, "vision", lambda: build(model_type, task, sizes), inputs, note=note)


def pictures_and_text(model_type: str, **options: Any) -> Entry:
    """A model that compares pictures with texts."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    picture_sizes = {name: SMALL[name] for name in names}
    sizes = {
        "text_config": {**SMALL, **options},
        "vision_config": {**picture_sizes, "image_size": 16, "patch_size": 4, **options},
    }

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        ids, mask = tokens(seed, other)
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randn(ids.shape[0], 3, 16, 16, generator=generator, dtype=dtype)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels, "return_loss": True}

    return Entry(model_type, "vision", lambda: build(model_type, "", sizes), inputs)


def audio(model_type: str, *, task: str, note: str = "", **options: Any) -> Entry:
    """A classifier of sounds."""
    inputs = classes(5, "input_values", (400,))
    sizes = {"num_labels": 5, "problem_type": "single_label_classification", **options}
    return Entry(model_type, "audio", lambda: build(model_type, task, sizes), inputs, settling=1, note=note)


PICTURE = 95  # the token that stands for a part of a picture


def seeing(model_type: str, sizes: dict[str, Any], *, parts: int = 4, several: bool = False, **options: Any) -> Entry:
    """A model that continues a text with a picture in it, of which so many tokens stand for parts."""
    kinds = options.pop("kinds", False)  # whether it is told which tokens are the picture's

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        batch, length = (3, parts + 8) if other else (2, parts + 6)
        ids = torch.randint(3, 90, (batch, length), generator=generator)
        ids[:, 1 : 1 + parts] = PICTURE
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        given["labels"] = torch.where(ids == PICTURE, -100, ids)
        shape = (batch, 1, 3, 16, 16) if several else (batch, 3, 16, 16)
        given["pixel_values"] = torch.randn(shape, generator=generator, dtype=dtype)
        if kinds:
            given["token_type_ids"] = (ids != PICTURE).long()
        return given

    whole = {"image_token_id": PICTURE, "image_token_index": PICTURE, **sizes}
    options.setdefault("generate", ("dynamic", "static"))
    return Entry(
        model_type, "vision and language", lambda: build(model_type, "ForImageTextToText", whole), inputs, **options
    )


def seeing_grids(model_type: str, vision: dict[str, Any], **options: Any) -> Entry:
    """A model that continues a text with a picture in it, of which a tensor tells how many patches it has."""
    text_sizes = {**GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
    sizes = {
        "text_config": text_sizes, "vision_config": {"depth": 2, "num_heads": 4, "patch_size": 4, **vision},
        "image_token_id": PICTURE, "video_token_id": 94, "vision_start_token_id": 96, "vision_end_token_id": 97,
    }  # fmt: skip

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        batch, length = (3, 14) if other else (2, 12)
        ids = torch.randint(3, 90, (batch, length), generator=generator)
        ids[:, 1], ids[:, 2:6], ids[:, 6] = 96, PICTURE, 97
        return {
            "input_ids": ids, "attention_mask": torch.ones_like(ids),
            "labels": torch.where(ids >= PICTURE, -100, ids), "mm_token_type_ids": (ids == PICTURE).long(),
            "pixel_values": torch.randn(batch * 16, 3 * 2 * 4 * 4, generator=generator, dtype=dtype),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * batch),
        }  # fmt: skip

    return Entry(
        model_type, "vision and language", lambda: build(model_type, "ForImageTextToText", sizes), inputs,
        dtype=torch.float32, generate=("dynamic", "static"), settling=1, retraces=None,
        note="in float32, keeps positions of the last call", **options,
    )  # fmt: skip


def listener(model_type: str, **options: Any) -> Entry:
    """A model that writes what it hears."""
    sizes = {**TOKENS, **options}
    bins, steps = options["num_mel_bins"], 2 * options["max_source_positions"]

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        labels = tokens(seed, other, 6)[0]
        sounds = torch.randn(labels.shape[0], bins, steps, generator=generator, dtype=dtype)
        return {"input_features": sounds, "labels": labels}

    return Entry(
        model_type, "audio", lambda: build(model_type, "ForSpeechSeq2Seq", sizes), inputs,
        generate=("dynamic", "static", "sampled"),
    )  # fmt: skip
