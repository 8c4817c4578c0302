# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers: encoders, decoders, encoder-decoders, mixtures of experts, state spaces, vision, audio."""

from __future__ import annotations

import torch

from zoo.entry import Entry
from zoo.hf import (
    GROUPED,
    SMALL,
    audio,
    causal,
    decoder,
    encoder,
    image,
    listener,
    pictures_and_text,
    seeing,
    seeing_grids,
    seq2seq,
    unpadded,
)

__all__ = ["BRANCHING", "MODELS"]

ENCODERS: list[Entry] = [
    encoder("bert"),
    encoder("roberta", task="ForTokenClassification"),
    encoder("xlm-roberta", task="ForSequenceClassification", problem_type="single_label_classification"),
    encoder("deberta-v2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    encoder("modernbert", global_attn_every_n_layers=2, local_attention=8, cls_token_id=1, sep_token_id=2),
    encoder("electra", embedding_size=16),
    encoder("distilbert", dim=32, hidden_dim=48, n_layers=2, n_heads=4),
    encoder("albert", embedding_size=16),
    encoder("mpnet"),
    encoder("camembert"),
    encoder("fnet"),
    encoder("longformer", attention_window=10),
]

GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
WINDOW = {"head_dim": 8, "sliding_window": 8}

DECODERS: list[Entry] = [
    causal("gpt2", "gpt2", GPT, generate=("dynamic", "static", "sampled", "uncached")),
    causal("gptj", "gptj", {**GPT, "rotary_dim": 4}),
    causal(
        "gpt_neo", "gpt_neo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
         "max_position_embeddings": 64, "window_size": 8, "intermediate_size": 48},
    ),
    causal("gpt_neox", "gpt_neox", SMALL),
    causal("opt", "opt", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    causal("bloom", "bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, inputs=unpadded),
    causal(
        "mpt", "mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4}, inputs=unpadded, generate=("dynamic", "sampled"),
    ),
    causal("falcon", "falcon", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}),
    decoder("llama"),
    # Where everything is masked, attention that is written out gives NaN in float64.
    causal(
        "llama, attention written out", "llama", {**GROUPED, "attn_implementation": "eager"}, dtype=torch.float32,
    ),
    decoder("mistral", sliding_window=8),
    decoder("qwen2"),
    decoder("qwen3", head_dim=8),
    decoder("gemma", head_dim=8),
    decoder("gemma2", dtype=torch.float32, **WINDOW),
    decoder("gemma3_text", **WINDOW),
    decoder("phi"),
    decoder("phi3"),
    decoder("olmo"),
    decoder("olmo2"),
    decoder("stablelm"),
    decoder("cohere", dtype=torch.float32),  # what normalizes computes in float32, here and below
    decoder("cohere2", dtype=torch.float32, sliding_window=8),
    decoder("granite"),
    decoder("smollm3"),
    decoder("starcoder2"),
    decoder("glm4", head_dim=8),
    decoder("nemotron"),
    decoder("helium", head_dim=8),
    decoder("exaone4"),
    decoder("ernie4_5", head_dim=8),
    decoder("apertus"),
]  # fmt: skip

T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip

ENCODER_DECODERS: list[Entry] = [
    seq2seq("t5", dtype=torch.float32, **T5),
    seq2seq("mt5", dtype=torch.float32, **T5),
    seq2seq("bart"),
    seq2seq("mbart"),
    seq2seq("pegasus"),
    seq2seq("marian", decoder_vocab_size=99),
    seq2seq("led", attention_window=10, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
]

EXPERTS = {**GROUPED, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DEEPSEEK = {
    **GROUPED, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_group": 2, "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip


def mixture(model_type: str, sizes: dict, experts: str, **options: object) -> Entry:
    """A mixture of experts, whose experts run in one of the ways that Transformers has."""
    # torch's grouped products know no float64.
    dtype = options.pop("dtype", torch.float32 if experts == "grouped_mm" else torch.float64)
    return causal(
        f"{model_type}, experts by {experts}", model_type, {**sizes, "experts_implementation": experts},
        family="mixture of experts", dtype=dtype, **options,
    )  # fmt: skip


MIXTURES: list[Entry] = [
    mixture("mixtral", EXPERTS, "grouped_mm"),
    mixture("mixtral", EXPERTS, "batched_mm", dtype=torch.float32),
    mixture("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 16}, "grouped_mm"),
    mixture("qwen3_moe", {**EXPERTS, "head_dim": 8}, "grouped_mm"),
    mixture("qwen3_moe", {**EXPERTS, "head_dim": 8}, "batched_mm"),
    mixture("olmoe", EXPERTS, "grouped_mm"),
    mixture("gpt_oss", {**EXPERTS, **WINDOW}, "grouped_mm"),
    mixture("deepseek_v3", DEEPSEEK, "grouped_mm"),
]

STATES = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}

MIXED = {"mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_d_head": 8, "mamba_chunk_size": 4}

STATE_SPACES: list[Entry] = [
    causal(
        "mamba", "mamba", STATES,
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "mamba, step by step", "mamba", {**STATES, "use_associative_scan": False},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "falcon_mamba", "falcon_mamba", STATES,
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "mamba2", "mamba2", {**STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "bamba", "bamba",
        {**GROUPED, "mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": "auto", "attn_layer_indices": [1],
         "mamba_chunk_size": 4},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "jamba", "jamba",
        {**EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
         "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "qwen3_next", "qwen3_next",
        {**EXPERTS, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
         "shared_expert_intermediate_size": 16},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "lfm2", "lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"]},
        family="state space", generate=("dynamic", "sampled"),
    ),
    causal(
        "recurrent_gemma", "recurrent_gemma",
        {**GROUPED, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
        family="state space", generate=("dynamic", "sampled"), note="keeps its state in the module",
    ),
    causal(
        "rwkv", "rwkv",
        {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": 64,
         "rescale_every": 0},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), settling_in_eval=1,
        note="computes in float32",
    ),
    causal(
        "zamba2", "zamba2",
        {**GROUPED, **MIXED, "num_key_value_heads": 4, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1,
         "chunk_size": 4, "layers_block_type": ["mamba", "hybrid", "mamba"], "hybrid_layer_ids": [1],
         "num_hidden_layers": 3, "use_mem_rope": True, "adapter_rank": 4, "num_mem_blocks": 1,
         "use_mamba_kernels": False, "attention_head_dim": 16},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "falcon_h1", "falcon_h1", {**GROUPED, **MIXED, "mamba_n_heads": 8, "mamba_d_ssm": 64, "head_dim": 8},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "granitemoehybrid", "granitemoehybrid",
        {**EXPERTS, **MIXED, "mamba_n_heads": 8, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 16,
         "experts_implementation": "grouped_mm"},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
    causal(
        "nemotron_h", "nemotron_h",
        {**GROUPED, "ssm_state_size": 4, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 4,
         "hybrid_override_pattern": "M*-", "num_hidden_layers": 3},
        family="state space", dtype=torch.float32, generate=("dynamic", "sampled"), note="computes in float32",
    ),
]  # fmt: skip

PATCHES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
WINDOWS = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
PYRAMID = {
    "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "strides": [4, 2],
    "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
}  # fmt: skip
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}

VISION: list[Entry] = [
    image("vit", **PATCHES),
    image("deit", **PATCHES, architectures=["DeiTForImageClassification"]),
    image("beit", **PATCHES, use_relative_position_bias=True, layer_scale_init_value=0.1),
    image("dinov2", **PATCHES),
    image("swin", **WINDOWS),
    image("swinv2", **WINDOWS),
    image("convnext", size=32, **STAGES, num_stages=2),
    image("convnextv2", size=32, **STAGES, num_stages=2),
    image("resnet", size=32, **STAGES, embedding_size=8, layer_type="basic"),
    image("regnet", size=32, **STAGES, embedding_size=8, groups_width=4),
    image("mobilenet_v2", size=32, image_size=32, depth_multiplier=0.35),
    image(
        "mobilevit", size=64, image_size=64, patch_size=2, hidden_sizes=[16, 24, 32], num_attention_heads=2,
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
    ),
    image(
        "segformer", size=32, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
        patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
    ),
    image("cvt", size=32, embed_dim=[8, 16, 24], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    image(
        "focalnet", size=32, image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    image("pvt", size=32, image_size=32, **PYRAMID, sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2]),
    image("pvt_v2", size=32, image_size=32, **PYRAMID, sr_ratios=[2, 1], patch_sizes=[3, 3]),
    image("efficientnet", size=32, image_size=32, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    image(
        "mobilevitv2", size=64, image_size=64, patch_size=2, width_multiplier=0.25, base_attn_unit_dims=[16, 24, 32],
        n_attn_blocks=[1, 1, 1],
    ),
    image("poolformer", size=32, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16]),
    pictures_and_text("clip", projection_dim=16),
    pictures_and_text("siglip"),
]  # fmt: skip

EYES = {**{name: PATCHES[name] for name in PATCHES if name != "patch_size"}, "patch_size": 8}
SIGLIP = {"model_type": "siglip_vision_model", **EYES}

SEEING: list[Entry] = [
    seeing(
        "llava",
        {"vision_config": {"model_type": "clip_vision_model", **EYES, "projection_dim": 16},
         "text_config": {"model_type": "llama", **GROUPED}, "vision_feature_layer": -1},
        settling=1,
    ),
    seeing(
        "paligemma",
        {"vision_config": SIGLIP, "text_config": {"model_type": "gemma", **GROUPED, "head_dim": 8},
         "projection_dim": 32, "hidden_size": 32, "vocab_size": 99},
        kinds=True, dtype=torch.float32,
    ),
    seeing(
        "gemma3",
        {"vision_config": SIGLIP, "text_config": {"model_type": "gemma3_text", **GROUPED, **WINDOW},
         "mm_tokens_per_image": 4},
    ),
    seeing(
        "idefics3",
        {"vision_config": EYES, "text_config": {"model_type": "llama", **GROUPED}, "scale_factor": 2},
        parts=1, several=True,
    ),
    seeing_grids("qwen2_vl", {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}),
    seeing_grids(
        "qwen2_5_vl",
        {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "window_size": 16,
         "fullatt_block_indexes": [1]},
    ),
]  # fmt: skip

LISTENING = {
    "task": "ForAudioClassification", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 20,
    "apply_spec_augment": False, "classifier_proj_size": 16, "layerdrop": 0.0,
}  # fmt: skip
AUDIO: list[Entry] = [
    listener(
        "whisper", d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, num_mel_bins=8,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=10,
        max_target_positions=32, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    ),
    audio("wav2vec2", **LISTENING),
    audio("hubert", **LISTENING),
    audio("wavlm", **LISTENING),
    audio("sew", **LISTENING, squeeze_factor=2),
]  # fmt: skip

# Models that branch on values, and one program for all values where there is one.
LOOP = "a Python loop over the selected experts; one program with experts_implementation='grouped_mm' or 'batched_mm'"
BRANCHING: list[Entry] = [
    mixture("mixtral", EXPERTS, "eager", generate=(), note=LOOP),
    mixture("qwen3_moe", {**EXPERTS, "head_dim": 8}, "eager", generate=(), note=LOOP),
    mixture("deepseek_v3", DEEPSEEK, "eager", generate=(), note=LOOP),
    seq2seq(
        "switch_transformers", dtype=torch.float32, **T5, num_experts=4, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        note="a Python loop over the selected experts",
    ),
]  # fmt: skip

MODELS: list[Entry] = [*ENCODERS, *DECODERS, *ENCODER_DECODERS, *MIXTURES, *STATE_SPACES, *VISION, *SEEING, *AUDIO]
